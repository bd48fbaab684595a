-- Retries: failed jobs that wait out their back-off, and how they are stored.
--
-- A stored job opens with the version of its format, and what a newer version wrote is left alone:
--   2 <entry> <route> <delay_us> <attempt> <kept> <id> <job>
--   3 <id> <entry> <route> <delay_us> <attempt> <kept> <job>
--     entry     the entry that failed; it makes the member unique         route  of that entry
--     delay_us  the length of the back-off                                attempt, kept, id  as its next entry carries them
-- 3 is what a slow-down turned away: its id comes first, both halves with zeros in front, so that of those that are due at the same
-- moment the one that was dispatched first leaves first. All of one slow-down are.
-- Version 1 had no such number and no `kept`: <entry> <route> <delay_us> <attempt> <id> <job>. It is still read.

local retries = {}
do
  local digits, whole = base.digits, base.whole
  local note, count = context.note, context.count

  local VERSION_3 = '^3 0*(%d+)%-0*(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) ()'
  local VERSION_2 = '^2 (%S+) (%S+) (%d+) (%d+) (%d+) (%S+) ()'
  local VERSION_1 = '^(%d+%-%d+) (%S+) (%d+) (%d+) (%S+) ()'
  local LOOK_AGAIN_US = 60000000 -- at what a newer version stored

  -- pack: a failed job as it is stored.
  local function pack(job)
    if job.is_throttled then
      local ms, n = match(job.id, '^(%d+)%-(%d+)$')
      local id = sub('00000000000000000000' .. ms, -20) .. '-' .. sub('00000000000000000000' .. n, -20)
      return table.concat({ '3', id, job.entry, job.route, digits(job.delay_us), digits(job.attempt), digits(job.kept), job.body }, ' ')
    end
    return table.concat({ '2', job.entry, job.route, digits(job.delay_us), digits(job.attempt), digits(job.kept), job.id,
      job.body }, ' ')
  end

  -- unpack_job: what a stored text says: a table with `format` 'good', 'newer' (a later version wrote it) or 'foreign'.
  local function unpack_job(text)
    local entry, _, delay_us, attempt, kept, id, at = match(text, VERSION_2)
    if not at then
      kept = '0'
      entry, _, delay_us, attempt, id, at = match(text, VERSION_1)
    end
    if at then
      return {
        format = 'good', entry = entry, delay_us = whole(delay_us) or 0, attempt = attempt, kept = kept, id = id, body_at = at,
      }
    end
    local ms, n
    ms, n, entry, _, delay_us, attempt, kept, at = match(text, VERSION_3)
    if at then
      return {
        format = 'good', entry = entry, delay_us = whole(delay_us) or 0, attempt = attempt, kept = kept, id = ms .. '-' .. n, body_at = at,
      }
    end
    local version = whole(match(text, '^(%d+) '))
    return { format = version and version > 3 and 'newer' or 'foreign', delay_us = LOOK_AGAIN_US }
  end

  -- add: a job waits until `ends`. Replies whether something may happen earlier now than the daemons know, or nil and the error.
  -- reads, writes  the bucket's retries, their index      cost  O(log n)
  function retries.add(ctx, name, job, ends)
    local first = pcall_redis('ZSCORE', ctx.k.retries, name)
    local err = base.is_error(first)
    local earliest = not err and call('ZRANGE', ctx.k.retries, '0', '0', 'WITHSCORES')
    local added = err and first or pcall_redis('ZADD', ctx.k.retry .. name, digits(ends), pack(job))
    err = base.is_error(added)
    if err then return nil, err end
    if not first or tonumber(first) > ends and tonumber(first) ~= huge then
      call('ZADD', ctx.k.retries, digits(ends), name)
    end
    return not earliest[2] or ends < earliest[2] + 0
  end

  -- first_end: the earliest end of a back-off, or `huge`.
  function retries.first_end(ctx)
    if not ctx.has_retries then return huge end
    local first = call('ZRANGE', ctx.k.retries, '0', '0', 'WITHSCORES')
    return first[2] and tonumber(first[2]) or huge
  end

  -- come_back: the first back-off of a bucket without work has ended, or one that had no slot free goes on: it waits for its due, no
  -- earlier than now. A change that has not reached it does so first: later nobody could tell from that due when its last job left.
  function retries.come_back(ctx, s, name, place, due)
    local p = record.policy_of(ctx.rec, name)
    if ctx.prev or p.over then
      local queue = ctx.k.queues .. name
      local level = tonumber(call('HGET', ctx.k.level, name) or nil)
      bucket.decide(ctx, s, name, queue, bucket.length_of(ctx, queue) or 0, place, due, level)
      if not rejected.settle(ctx, s) then return bucket.stick(ctx, s) end
    else
      s.bucket, s.place, s.stored_due, s.due = name, place, due, due
      local br = brake.of(ctx, name, p)
      if br then s.due = brake.hold(ctx, br, p, br.pace or max(due or ctx.now, ctx.now)) end
    end
    s.due = max(s.due or ctx.now, ctx.now)
    if place ~= ctx.k.full and p.parent and not p.refused then budget.arrives(ctx, p.parent, name) end
    places.commit(ctx, s, p.paused and ctx.k.paused or ctx.k.schedule)
  end

  -- announce: put the buckets of back-offs that ended on the schedule, or with those that are paused; at most a batch of them.
  function retries.announce(ctx)
    local ended = call('ZRANGE', ctx.k.retries, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', ctx.limits.batch)
    if #ended == 0 then return end
    local stands, dues = places.load(ctx, ended)
    local s, done = {}, {}
    ctx.announced = {}
    for i, name in ipairs(ended) do
      if context.spent(ctx) then break end
      local place = stands[i]
      ctx.announced[name] = true
      local goes_on = place == nil or place == ctx.k.rest
        or place == ctx.k.full and not slots.is_full(ctx, name, record.policy_of(ctx.rec, name), true)
      if goes_on then retries.come_back(ctx, s, name, place, dues[i]) end
      done[#done + 1], done[#done + 2] = '+inf', name
    end
    places.flush(ctx)
    if done[1] then call('ZADD', ctx.k.retries, unpack(done)) end -- last: where the above raises, all are announced again
  end

  -- announced: of some buckets, those whose first back-off has ended and which were scheduled for it.
  function retries.announced(ctx, names)
    local yes = {}
    if ctx.has_retries then
      for i, ends in ipairs(call('ZMSCORE', ctx.k.retries, unpack(names))) do yes[i] = ends and tonumber(ends) == huge end
    end
    return yes
  end

  -- has_ended: whether a retry of a bucket could leave, were the bucket due.
  function retries.has_ended(ctx, name)
    if ctx.has_retries == false then return false end -- a drain has looked
    local ends = tonumber(call('ZSCORE', ctx.k.retries, name) or nil)
    return ends ~= nil and (ends <= ctx.now or ends == huge)
  end

  -- next_one: the job of a bucket that leaves next, of those whose back-off has ended, or nil. What is none of ours is buried,
  -- and what a newer version stored is left where it is and looked at again later.
  function retries.next_one(ctx, s)
    local key = ctx.k.retry .. s.bucket
    for _ = 1, 10 do
      local text = call('ZRANGE', key, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', '1')[1]
      if not text then return nil end
      local job = unpack_job(text)
      if job.format == 'good' then
        job.text, job.body = text, sub(text, job.body_at)
        ctx.bytes = ctx.bytes + #text
        return job
      elseif job.format == 'newer' then
        note(ctx, 'newer', key)
        call('ZADD', key, digits(ctx.now + LOOK_AGAIN_US), text)
      else
        local buried = pcall_redis('XADD', ctx.k.dead, '*', 'bucket', s.bucket, 'job', text, 'attempt', '1', 'id', '0-0',
          'reason', 'malformed')
        if base.is_error(buried) then
          note(ctx, 'refused', ctx.k.dead, base.is_error(buried))
          return nil
        end
        call('ZREM', key, text)
        count(ctx, 'malformed', 1)
      end
    end
  end

  -- remove: a job has left.
  function retries.remove(ctx, s, job)
    call('ZREM', ctx.k.retry .. s.bucket, job.text)
    count(ctx, 'retried', 1)
  end

  -- forget_all: throw away all retries of a bucket.
  function retries.forget_all(ctx, name)
    call('UNLINK', ctx.k.retry .. name)
    call('ZREM', ctx.k.retries, name)
  end

  -- index: write when the first back-off of a bucket ends, or leave one that has ended and was announced as it is. Replies
  -- whether one has ended.
  function retries.index(ctx, name, announced)
    local first = call('ZRANGE', ctx.k.retry .. name, '0', '0', 'WITHSCORES')
    if not first[1] then
      call('ZREM', ctx.k.retries, name)
      return false
    end
    local ended = first[2] + 0 <= ctx.now
    if not (ended and announced) then call('ZADD', ctx.k.retries, first[2], name) end
    return ended
  end

  -- sweep_bucket: part of the retries of one bucket, from the last that ends to the first that has ended. They are read one by one,
  -- for each holds its job. `at.rank` keeps where it stands. Replies whether that was all.
  local function sweep_bucket(ctx, at)
    local key = ctx.k.retry .. at.bucket
    local card, changed = call('ZCARD', key), false
    -- What was added since may stand before: as many are looked at again.
    local rank = min(card, at.rank + max(0, card - at.card)) - 1
    at.card = card
    for _ = 1, ctx.page do
      if ctx.bytes >= MIB then break end
      local found = rank >= 0 and call('ZRANGE', key, rank, rank, 'WITHSCORES') or {}
      if not found[2] or found[2] + 0 <= ctx.now then
        rank = -1
        break
      end
      local text, latest = found[1], ctx.now + unpack_job(found[1]).delay_us
      ctx.bytes = ctx.bytes + #text
      if found[2] + 0 > latest then
        call('ZADD', key, digits(latest), text) -- it moves down, and another one stands here
        changed = true
      else
        rank = rank - 1
      end
    end
    if changed and tonumber(call('ZSCORE', ctx.k.retries, at.bucket) or nil) ~= huge then
      retries.index(ctx, at.bucket, false)
    end
    at.rank = rank + 1
    return at.rank <= 0
  end

  -- sweep: a part of the retries of all buckets, after the clock stepped back: no back-off lies further ahead than its own length.
  -- `at` keeps where it stands. Replies whether that was the last part.
  function retries.sweep(ctx, at)
    if not at.bucket then
      if #at.waiting == 0 then
        if at.last then return true end
        local page = call('ZSCAN', ctx.k.retries, at.cursor, 'COUNT', ctx.page)
        for i = 1, #page[2], 2 do at.waiting[#at.waiting + 1] = page[2][i] end
        at.cursor, at.last = page[1], page[1] == '0'
        return #at.waiting == 0 and at.last
      end
      at.bucket, at.card = table.remove(at.waiting), 0
      at.rank = 0
    end
    if sweep_bucket(ctx, at) then at.bucket = nil end
    return false
  end
end
