-- needs: base, base.call, base.names, jobs.slots, pace.brake, policy.record, queue.bucket, queue.delayed,
--   queue.envelope, queue.ids, queue.places, queue.rejected, tree.budget
-- Retries: failed jobs that wait out their back-off, and how they are stored.
--
-- A stored job opens with the version of its format, and what a newer version wrote is left alone:
--   2 <entry> <route> <delay_us> <attempt> <kept> <id> <job>
--   4 <order> <entry> <route> <delay_us> <attempt> <kept> <options><job>
--     entry     the entry that failed; it makes the member unique         route  of that entry
--     delay_us  the length of the back-off                                attempt, kept, id  as its next entry carries them
-- 4 is a submitted job, with its options as queue/envelope has them, and each job that a slow-down turned away. Of one that was, `order` is the id
-- of its first dispatch, or where the job has an id of its own that of the dispatch that was turned away, both halves with zeros in
-- front: so that of those that are due at the same moment the one that was dispatched first leaves first. All of one slow-down are. Else
-- `order` is `-`.
-- Two versions are written no more, and still read. 1 had no such number and no `kept`: <entry> <route> <delay_us> <attempt> <id> <job>. 3 was
-- what a slow-down turned away: 3 <order> <entry> <route> <delay_us> <attempt> <kept> <job>, with the id for its order.
--
-- The index, <prefix>:retries, tells of each bucket when the first of its retries and of its delayed jobs (53_delayed) may leave.

local retries = {}
do
  local digits, whole = base.digits, base.whole
  local note, count = context.note, context.count

  local VERSION_4 = '^4 (%S+) (%S+) (%S+) (%d+) (%d+) (%d+) ()'
  local VERSION_3 = '^3 0*(%d+)%-0*(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) ()'
  local VERSION_2 = '^2 (%S+) (%S+) (%d+) (%d+) (%d+) (%S+) ()'
  local VERSION_1 = '^(%d+%-%d+) (%S+) (%d+) (%d+) (%S+) ()'
  local LOOK_AGAIN_US = 60000000 -- at what a newer version stored
  local LOOKED_AT_MOST = 10 -- for one that leaves: cancelled ones are gone without a slot

  -- pack: a failed job as it is stored.
  local function pack(job)
    local o, order = job.options, '-'
    if not job.is_throttled and envelope.is_bare(o) then
      return table.concat({ '2', job.entry, job.route, digits(job.delay_us), digits(job.attempt), digits(job.kept), o.id, job.body }, ' ')
    end
    if job.is_throttled then
      local is_entry = find(o.id, '-', 1, true) and names.entry_id(o.id) -- a producer's id may be a bare number
      local ms, n = match(is_entry or job.entry, '^(%d+)%-(%d+)$')
      order = sub('00000000000000000000' .. ms, -20) .. '-' .. sub('00000000000000000000' .. n, -20)
    end
    return table.concat({ '4', order, job.entry, job.route, digits(job.delay_us), digits(job.attempt), digits(job.kept),
      envelope.options_text(o) .. job.body }, ' ')
  end

  local function good(entry, delay_us, attempt, kept, options, at)
    return { format = 'good', entry = entry, delay_us = whole(delay_us) or 0, attempt = attempt, kept = kept, options = options, body_at = at }
  end

  -- unpack_job: what a stored text says: a table with `format` 'good', 'newer' (a later version wrote it) or 'foreign'.
  local function unpack_job(text)
    local entry, _, delay_us, attempt, kept, id, at = match(text, VERSION_2)
    if not at then
      kept = '0'
      entry, _, delay_us, attempt, id, at = match(text, VERSION_1)
    end
    if at then return good(entry, delay_us, attempt, kept, { id = id, cost = 1, headers = {} }, at) end
    _, entry, _, delay_us, attempt, kept, at = match(text, VERSION_4)
    local o
    if at then o, at = envelope.options_at(text, at) end
    if o then return good(entry, delay_us, attempt, kept, o, at) end
    local ms, n
    ms, n, entry, _, delay_us, attempt, kept, at = match(text, VERSION_3)
    if at then return good(entry, delay_us, attempt, kept, { id = ms .. '-' .. n, cost = 1, headers = {} }, at) end
    local version = whole(match(text, '^(%d+) '))
    return { format = version and version > 4 and 'newer' or 'foreign', delay_us = LOOK_AGAIN_US }
  end

  -- expect: something of a bucket may leave at `ends`: that stands in the index. Replies whether it may happen earlier now than the daemons
  -- know.
  -- reads, writes  the index      cost  at most 3 calls, and 3 more of a bucket whose jobs finish in their order
  function retries.expect(ctx, name, ends)
    local first = call('ZSCORE', ctx.k.retries, name)
    local earliest = call('ZRANGE', ctx.k.retries, '0', '0', 'WITHSCORES')
    if not first or tonumber(first) > ends and tonumber(first) ~= huge then
      call('ZADD', ctx.k.retries, digits(ends), name)
    end
    -- One whose jobs finish in their order waits for one that failed, whatever was announced, and a delayed job does too.
    if record.policy_of(ctx.rec, name).ordered then retries.index(ctx, name, true) end
    return not earliest[2] or ends < earliest[2] + 0
  end

  -- add: a job waits until `ends`. Replies whether something may happen earlier now than the daemons know, or nil and the error.
  -- reads, writes  the bucket's retries, their index      cost  O(log n)
  function retries.add(ctx, name, job, ends)
    local err = base.is_error(pcall_redis('ZSCORE', ctx.k.retries, name))
      or base.is_error(pcall_redis('ZADD', ctx.k.retry .. name, digits(ends), pack(job)))
    if err then return nil, err end
    return retries.expect(ctx, name, ends)
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
      if not rejected.settle(ctx, s) then return bucket.park(ctx, s) end
    else
      local br = brake.of(ctx, name, p)
      local latest = ctx.now + (br and brake.reach_us(br, p) or p.interval_us) -- further ahead the clock stepped back
      local pace = min(br and br.pace or max(due or ctx.now, ctx.now), latest)
      s.bucket, s.place, s.stored_due, s.due = name, place, due, br and brake.hold(ctx, br, p, pace) or pace
    end
    s.due = max(s.due or ctx.now, ctx.now)
    if place ~= ctx.k.full and p.parent and not p.refused then budget.arrives(ctx, p.parent, name) end
    local is_full = p.concurrency and not p.refused and slots.is_full(ctx, name, p, ctx.announced and ctx.announced[name])
    places.commit(ctx, s, p.paused and ctx.k.paused or is_full and ctx.k.full or ctx.k.schedule)
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
      local place, p = stands[i], record.policy_of(ctx.rec, name)
      local waits_for = p.ordered and call('ZRANGE', ctx.k.retry .. name, '0', '0', 'WITHSCORES')[2]
      if waits_for and waits_for + 0 > ctx.now then
        -- The time of a delayed job has come, and it waits for one that failed: so the end of that is announced.
        done[#done + 1], done[#done + 2] = digits(waits_for + 0), name
      else
        ctx.announced[name] = true
        local goes_on = place == nil or place == ctx.k.rest or place == ctx.k.full and not slots.is_full(ctx, name, p, true)
        if goes_on then retries.come_back(ctx, s, name, place, dues[i]) end
        done[#done + 1], done[#done + 2] = '+inf', name
      end
    end
    places.flush(ctx)
    if done[1] then call('ZADD', ctx.k.retries, unpack(done)) end -- last: where the above raises, all are announced again
  end

  -- any_has_ended: whether a retry or a delayed job of any bucket could leave, were its bucket due.
  function retries.any_has_ended(ctx)
    return call('ZCOUNT', ctx.k.retries, '+inf', '+inf') > 0 or call('ZCOUNT', ctx.k.retries, '-inf', ctx.now_text) > 0
  end

  -- announced: of some buckets, those whose first back-off has ended and which were scheduled for it.
  function retries.announced(ctx, names)
    local yes = {}
    if ctx.has_ended then
      for i, ends in ipairs(call('ZMSCORE', ctx.k.retries, unpack(names))) do yes[i] = ends and tonumber(ends) == huge end
    end
    return yes
  end

  -- one_has_ended: whether a retry of a bucket could leave, its delayed jobs aside.
  function retries.one_has_ended(ctx, name)
    if ctx.has_retries == false then return false end -- a drain has looked
    local first = call('ZRANGE', ctx.k.retry .. name, '0', '0', 'WITHSCORES')[2]
    return first ~= nil and first + 0 <= ctx.now
  end

  -- has_ended: whether a retry of a bucket, or a delayed job, could leave, were the bucket due.
  function retries.has_ended(ctx, name)
    if ctx.has_retries == false then return false end -- a drain has looked
    local ends = tonumber(call('ZSCORE', ctx.k.retries, name) or nil)
    return ends ~= nil and (ends <= ctx.now or ends == huge)
  end

  -- given_up: a submitted job whose turn has come and that was cancelled is gone, and one whose deadline is over is dead, both without a
  -- slot. Replies whether it was given up; s.parked: it cannot be buried.
  local function given_up(ctx, s, key, job)
    local o = job.options
    local it = ids.of_job(ctx, s.bucket, o)
    if ids.is_cancelled(it) then
      count(ctx, 'cancelled', 1)
    elseif o.deadline_us and o.deadline_us < ctx.now then
      local entry = { 'bucket', s.bucket, 'job', job.body, 'attempt', max(1, job.attempt - 1), 'id', o.id, 'reason', 'expired' }
      envelope.add_fields(entry, o)
      local buried = pcall_redis('XADD', ctx.k.dead, '*', unpack(entry))
      if base.is_error(buried) then
        note(ctx, 'refused', ctx.k.dead, base.is_error(buried))
        s.parked = true
        return true
      end
      count(ctx, 'dead', 1)
    else
      return false
    end
    ids.left(ctx, s.bucket, o, it)
    if ids.is_cancelled(it) then ids.dropped(ctx, s.bucket, { o.id }) end
    call('ZREM', key, job.text)
    return true
  end

  -- next_one: the job of a bucket that leaves next, of those whose back-off has ended, or nil. What is none of ours is buried,
  -- and what a newer version stored is left where it is and looked at again later. The second reply is how many were looked at,
  -- where there may be more behind them.
  function retries.next_one(ctx, s)
    local key = ctx.k.retry .. s.bucket
    for _ = 1, LOOKED_AT_MOST do
      local text = call('ZRANGE', key, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', '1')[1]
      if not text then return nil end
      local job = unpack_job(text)
      if job.format == 'good' then
        job.text, job.body = text, sub(text, job.body_at)
        ctx.bytes = ctx.bytes + #text
        if not ctx.magic or not given_up(ctx, s, key, job) then return job end
        if s.parked then return nil end
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
    return nil, LOOKED_AT_MOST
  end

  -- remove: a job has left.
  function retries.remove(ctx, s, job)
    call('ZREM', ctx.k.retry .. s.bucket, job.text)
    if ctx.magic then ids.left(ctx, s.bucket, job.options, ids.of_job(ctx, s.bucket, job.options)) end
    count(ctx, 'retried', 1)
  end

  -- forget_all: throw away all retries of a bucket. The index is put right by the caller.
  function retries.forget_all(ctx, name)
    call('UNLINK', ctx.k.retry .. name)
  end

  -- index: write when the first back-off of a bucket ends, or the time of its first delayed job comes, or leave what has ended and was
  -- announced as it is. Where jobs finish in their order, or did so far, a delayed one may have waited for a retry that is gone: that it has
  -- come was not announced. Replies whether one has ended.
  function retries.index(ctx, name, announced)
    local first = call('ZRANGE', ctx.k.retry .. name, '0', '0', 'WITHSCORES')[2]
    local ends = first and first + 0 or huge
    -- Where jobs finish in their order a delayed one waits for one that failed, as the queue does.
    if ends == huge or not record.policy_of(ctx.rec, name).ordered then ends = min(ends, delayed.first_time(ctx, name)) end
    if ends == huge then
      call('ZREM', ctx.k.retries, name)
      return false
    end
    local ended = ends <= ctx.now
    if not (ended and announced) then
      call('ZADD', ctx.k.retries, digits(ends), name)
    elseif (not first or first + 0 > ctx.now) and (tonumber(call('ZSCORE', ctx.k.retries, name) or nil) or huge) < huge then
      call('ZADD', ctx.k.retries, 'LT', digits(ends), name)
    end
    return ended
  end

  -- reorder: what applies to a bucket may have changed: it waits for one that failed from now on, or waits for that no more. What was announced
  -- of one whose jobs finish in their order may not be over; `anew`: the clock may have stepped back since, so it is announced once more.
  function retries.reorder(ctx, name, anew)
    local ends = tonumber(call('ZSCORE', ctx.k.retries, name) or nil)
    if ends and (ends < huge or record.policy_of(ctx.rec, name).ordered) then retries.index(ctx, name, ends == huge and not anew) end
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
      delayed.go_on_counting(ctx, at, at.bucket)
    end
    if sweep_bucket(ctx, at) then
      retries.reorder(ctx, at.bucket, true)
      at.bucket = nil
    end
    return false
  end
end
