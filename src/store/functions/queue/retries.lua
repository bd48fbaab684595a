-- needs: base, base.names, context, limits.constraints, limits.slots, policy.chain, policy.record, queue.dead_entry,
--   queue.delayed, queue.envelope, queue.ids, queue.rejected, state, state.bucket, tree.budget
-- Retries: failed jobs that back off, and how they are stored.
--
-- A stored job begins with the version of its format. A job that a newer version wrote is left alone:
--   2 <entry> <route> <delay_us> <attempt> <kept> <id> <job>
--   4 <order> <entry> <route> <delay_us> <attempt> <kept> <options><job>
--     entry     the entry that failed; it makes the member unique         route  of that entry
--     delay_us  the length of the back-off                                attempt, kept, id  as its next entry has them
-- Version 4 is for submitted jobs, with their options (queue/envelope), and for every job that a slow-down sent back.
-- For a job that a slow-down sent back, `order` is the id of its first dispatch; where the job has an id of its own it
-- is the id of the dispatch that was sent back. Both halves are padded with zeros, so that of jobs that are due at the
-- same moment (all of one slow-down are) the one that was dispatched first leaves first. Otherwise `order` is `-`.
-- Versions 1 and 3 are read, but not written any more. 1 had no version and no `kept`: <entry> <route> <delay_us>
-- <attempt> <id> <job>. 3 was for jobs that a slow-down sent back: 3 <order> <entry> <route> <delay_us> <attempt>
-- <kept> <job>, with the id as its order.
--
-- The index, <prefix>:retries, has for each bucket when the first of its retries and of its delayed jobs
-- (queue/delayed) may leave.

local retries = {}
do
  local digits, integer = base.digits, base.integer
  local note, count = context.note, context.count

  local VERSION_4 = '^4 (%S+) (%S+) (%S+) (%d+) (%d+) (%d+) ()'
  local VERSION_3 = '^3 0*(%d+)%-0*(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) ()'
  local VERSION_2 = '^2 (%S+) (%S+) (%d+) (%d+) (%d+) (%S+) ()'
  local VERSION_1 = '^(%d+%-%d+) (%S+) (%d+) (%d+) (%S+) ()'
  local LOOK_AGAIN_US = 60000000 -- when a job that a newer version stored is looked at again
  local LOOKED_AT_MOST = 10 -- texts that are read for one job that leaves: cancelled jobs are dropped without a slot

  -- pack: a failed job as it is stored.
  local function pack(job)
    local o, order = job.options, '-'
    if not job.is_throttled and envelope.is_bare(o) then
      return table.concat(
        { '2', job.entry, job.route, digits(job.delay_us), digits(job.attempt), digits(job.kept), o.id, job.body },
        ' '
      )
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
    return {
      format = 'good',
      entry = entry,
      delay_us = integer(delay_us) or 0,
      attempt = attempt,
      kept = kept,
      options = options,
      body_at = at,
    }
  end

  -- unpack_job: decode a stored text: a table with `format` 'good', 'newer' (a later version wrote it) or 'foreign'.
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
    local version = integer(match(text, '^(%d+) '))
    return { format = version and version > 4 and 'newer' or 'foreign', delay_us = LOOK_AGAIN_US }
  end

  -- expect: a retry or delayed job of a bucket may leave at `ends`: note it in the index. Replies whether that may be
  -- earlier than the daemons know.
  -- reads, writes  the index      cost  at most 3 calls, and 3 more for an `ordered` bucket
  function retries.expect(ctx, name, ends)
    local first = call('ZSCORE', ctx.k.retries, name)
    local earliest = base.first_score(ctx.k.retries)
    if not first or tonumber(first) > ends and tonumber(first) ~= huge then
      call('ZADD', ctx.k.retries, digits(ends), name)
    end
    -- An `ordered` bucket waits for its failed job, whatever was announced, and so does a delayed job.
    if record.policy_of(ctx.rec, name).ordered then retries.index(ctx, name, true) end
    return ends < earliest
  end

  -- add: a job backs off until `ends`. Replies whether that may be earlier than the daemons know, or nil and the error.
  -- Where it `has_id`, it can be found and cancelled by it.
  -- reads, writes  the bucket's retries, their index, ids      cost  O(log n)
  function retries.add(ctx, name, job, ends)
    local has_id = ctx.magic and job.has_id
    local err = base.is_error(pcall_redis('ZSCORE', ctx.k.retries, name))
      or has_id and ids.wrong_type(ctx, name)
      or base.is_error(pcall_redis('ZADD', ctx.k.retry .. name, digits(ends), pack(job)))
    if err then return nil, type(err) == 'table' and err.err or err end
    if has_id then ids.backs_off(ctx, name, job.options.id, job.entry, job.attempt, ends) end
    return retries.expect(ctx, name, ends)
  end

  -- first_at: the earliest time at which a retry or delayed job of any bucket may leave, by the index, or `huge`.
  function retries.first_at(ctx) return base.first_score(ctx.k.retries) end

  -- first_end: the earliest end of a back-off, or `huge`.
  function retries.first_end(ctx)
    return ctx.has_retries and retries.first_at(ctx) or huge
  end

  -- arrive: the first back-off of a bucket without work has ended, or a bucket that had no free slot resumes: it waits
  -- for its due, no earlier than now. A change that is not applied to it yet is applied first: later its due would not
  -- tell when its last job left.
  function retries.arrive(ctx, s, name, from, due, event)
    local p = record.policy_of(ctx.rec, name)
    if ctx.old_rec or p.over then
      local queue = ctx.k.queues .. name
      local allowance = tonumber(call('HGET', ctx.k.level, name) or nil)
      bucket.decide(ctx, s, name, queue, bucket.length_of(ctx, queue) or 0, from, due, allowance)
      if not rejected.trim_to_capacity(ctx, s) then return bucket.park(ctx, s, event) end
    else
      local constraint = constraints.of(ctx, name, p)
      -- Further ahead the clock stepped back.
      local latest = ctx.now + (constraint and constraints.max_ahead_us(constraint, p) or p.interval_us)
      local pace = min(constraint and constraint.pace or max(due or ctx.now, ctx.now), latest)
      s.bucket, s.p, s.state, s.stored_due = name, p, from, due
      s.due = constraint and constraints.hold(ctx, constraint, p, pace) or pace
    end
    s.due = max(s.due or ctx.now, ctx.now)
    if from ~= ctx.k.full and p.parent and not p.refused then budget.drop_stale_tag(ctx, p.parent, name) end
    state.enter(ctx, s, state.stopped(ctx, name, p, ctx.announced and ctx.announced[name]) or ctx.k.schedule, event)
  end

  -- announce: a batch of buckets at most whose back-offs have ended: put those on the schedule, or into the state that
  -- stops them.
  function retries.announce(ctx)
    local ended = call('ZRANGE', ctx.k.retries, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', ctx.limits.batch)
    if #ended == 0 then return end
    local states, dues = state.load(ctx, ended)
    local s, done = {}, {}
    ctx.announced = {}
    for i, name in ipairs(ended) do
      if context.spent(ctx) then break end
      local from, p = states[i], record.policy_of(ctx.rec, name)
      local waits_for = p.ordered and base.first_score(ctx.k.retry .. name) or huge
      if waits_for > ctx.now and waits_for < huge then
        -- A delayed job's time has come, but it waits for a failed one: the end of that back-off is announced.
        done[#done + 1], done[#done + 2] = digits(waits_for), name
      else
        ctx.announced[name] = true
        local goes_on = from == nil
          or from == ctx.k.rest
          or from == ctx.k.full and not slots.is_full(ctx, name, p, true)
        if goes_on then retries.arrive(ctx, s, name, from, dues[i], 'arrive') end
        done[#done + 1], done[#done + 2] = '+inf', name
      end
    end
    state.flush(ctx)
    -- Last: where something above raises, all are announced again.
    if done[1] then call('ZADD', ctx.k.retries, unpack(done)) end
  end

  -- any_has_ended: whether a retry or a delayed job of any bucket could leave, if its bucket were due.
  function retries.any_has_ended(ctx)
    return call('ZCOUNT', ctx.k.retries, '+inf', '+inf') > 0 or call('ZCOUNT', ctx.k.retries, '-inf', ctx.now_text) > 0
  end

  -- announced: for each of some buckets, whether its first back-off has ended and it was scheduled for that.
  function retries.announced(ctx, names)
    local yes = {}
    if ctx.has_ended then
      for i, ends in ipairs(call('ZMSCORE', ctx.k.retries, unpack(names))) do
        yes[i] = ends and tonumber(ends) == huge
      end
    end
    return yes
  end

  -- one_has_ended: whether a retry of a bucket could leave. Its delayed jobs do not count.
  function retries.one_has_ended(ctx, name)
    if ctx.has_retries == false then return false end -- a drain has looked
    return base.first_score(ctx.k.retry .. name) <= ctx.now
  end

  -- has_ended: whether a retry or a delayed job of a bucket could leave, if the bucket were due.
  function retries.has_ended(ctx, name)
    if ctx.has_retries == false then return false end -- a drain has looked
    local ends = tonumber(call('ZSCORE', ctx.k.retries, name) or nil)
    return ends ~= nil and (ends <= ctx.now or ends == huge)
  end

  -- given_up: at its turn, drop a cancelled job, and bury one whose deadline has passed; neither takes a slot. Replies
  -- whether it was given up; s.parked: it cannot be buried.
  local function given_up(ctx, s, key, job)
    local known = ids.at_turn(ctx, s.bucket, job.options.id, 'r', job.entry)
    local o = envelope.changed_by(ctx.magic, job.options, known.changed)
    if o ~= job.options then
      job.options, job.body, ctx.bytes = o, o.body, ctx.bytes + #known.changed
    end
    job.known = known
    if known.changed == '' then
      count(ctx, 'cancelled', 1)
    elseif o.deadline_us and o.deadline_us < ctx.now then
      local more = {}
      envelope.add_fields(more, o)
      local err = dead_entry.add(ctx, s.bucket, job.body, max(1, job.attempt - 1), o.id, 'expired', more)
      if err then
        note(ctx, 'refused', ctx.k.dead, err)
        s.parked = true
        return true
      end
    else
      return false
    end
    call('ZREM', key, job.text)
    if known.changed == '' then ids.dropped(ctx, s.bucket, o.id, known) else ids.left(ctx, s.bucket, s.p, o, known) end
    return true
  end

  -- next_one: the next job of a bucket whose back-off has ended, or nil. A text that dripd did not write is buried. A
  -- text of a newer version is left alone and looked at again later. The second reply is how many texts were read,
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
        local err = dead_entry.add(ctx, s.bucket, text, '1', '0-0', 'malformed')
        if err then
          note(ctx, 'refused', ctx.k.dead, err)
          return nil
        end
        call('ZREM', key, text)
      end
    end
    return nil, LOOKED_AT_MOST
  end

  -- remove: a job has left.
  function retries.remove(ctx, s, job)
    call('ZREM', ctx.k.retry .. s.bucket, job.text)
    if job.known then ids.left(ctx, s.bucket, s.p, job.options, job.known) end
    count(ctx, 'retried', 1)
  end

  -- note_vanished: a bucket has its turn, its queue is empty, and no retry or delayed job was announced: somebody
  -- deleted the queue or took jobs out of it, or Redis did, because the key had a time to live.
  function retries.note_vanished(ctx, s)
    count(ctx, 'queues_vanished', 1)
    note(ctx, 'emptied', s.queue)
  end

  -- forget_all: delete all retries of a bucket. The caller reconciles the index.
  function retries.forget_all(ctx, name)
    call('UNLINK', ctx.k.retry .. name)
  end

  -- forget_idle: these nodes have become idle (`state.forget_cooled`): what is known of submitted jobs in those of them
  -- that have no retry and no delayed job either is deleted.
  -- writes  jobs      cost  2 calls
  function retries.forget_idle(ctx, nodes)
    if not nodes then return end
    local idle, ends = {}, call('ZMSCORE', ctx.k.retries, unpack(nodes))
    for i, name in ipairs(nodes) do
      if not ends[i] and not chain.budget_of(name) then idle[#idle + 1] = name end
    end
    ids.forget_lines(ctx, idle)
  end

  -- index: write when the first back-off of a bucket ends, or the time of its first delayed job comes. An end that has
  -- passed and was announced is left as it is. Where a bucket is or was `ordered`, a delayed job may have waited for a
  -- retry that is gone, and its time was not announced. Replies whether one has ended.
  function retries.index(ctx, name, announced)
    local first = base.first_score(ctx.k.retry .. name)
    local ends = first
    -- In an `ordered` bucket a delayed job waits for a failed one, as the queue does.
    if ends == huge or not record.policy_of(ctx.rec, name).ordered then
      ends = min(ends, delayed.first_time(ctx, name))
    end
    if ends == huge then
      call('ZREM', ctx.k.retries, name)
      return false
    end
    local ended = ends <= ctx.now
    if not (ended and announced) then
      call('ZADD', ctx.k.retries, digits(ends), name)
    elseif first > ctx.now
      and (tonumber(call('ZSCORE', ctx.k.retries, name) or nil) or huge) < huge then
      call('ZADD', ctx.k.retries, 'LT', digits(ends), name)
    end
    return ended
  end

  -- reorder: the policy of a bucket may have changed: it may wait for its failed job from now on, or no longer. In an
  -- `ordered` bucket, what was announced may not have ended. `anew`: the clock may have stepped back since, so it is
  -- announced once more.
  function retries.reorder(ctx, name, anew)
    local ends = tonumber(call('ZSCORE', ctx.k.retries, name) or nil)
    if ends and (ends < huge or record.policy_of(ctx.rec, name).ordered) then
      retries.index(ctx, name, ends == huge and not anew)
    end
  end

  -- sweep_bucket: sweep a part of the retries of one bucket, from the last end to the first that has passed. They are
  -- read one by one, because each has its job. `at.rank` is the position. Replies whether that was all.
  local function sweep_bucket(ctx, at)
    local key = ctx.k.retry .. at.bucket
    local card, changed = call('ZCARD', key), false
    -- Retries that were added since may be in front: as many are read again.
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
        call('ZADD', key, digits(latest), text) -- it moves down, and another one has this rank
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

  -- sweep: after the clock stepped back, limit the back-offs of all buckets, a part in each call: none ends further
  -- ahead than its own length. `at` is the position. Replies whether that was the last part.
  function retries.sweep(ctx, at)
    if not at.bucket then
      if #at.waiting == 0 then
        if at.last then return true end
        local page = call('ZSCAN', ctx.k.retries, at.cursor, 'COUNT', ctx.page)
        at.waiting, at.cursor, at.last = base.names_in(page[2]), page[1], page[1] == '0'
        return #at.waiting == 0 and at.last
      end
      at.bucket, at.card = table.remove(at.waiting), 0
      at.rank = 0
      delayed.count_page(ctx, at, at.bucket)
    end
    if sweep_bucket(ctx, at) then
      retries.reorder(ctx, at.bucket, true)
      at.bucket = nil
    end
    return false
  end
end
