-- needs: base, base.keys, base.names, context, context.memory, jobs.adjust, jobs.limit_report,
--   jobs.node_change, jobs.release, jobs.throttle, policy.record, queue.dead_entry, queue.envelope,
--   queue.retries, route.position, state
-- Dispatched jobs: ack, adjust and fail; and taking a job back, which the reaper does too.

local jobs = {}
do
  local refuse, wrong_type, is_error = base.refuse, base.wrong_type, base.is_error
  local digits, integer = base.digits, base.integer
  local entry_id, is_bucket = names.entry_id, names.is_bucket
  local policy_of, count = record.policy_of, context.count

  local NEEDS_UNITS = 'COST needs a whole number of units'
  local DELAY_MAX_MS = 366 * 86400000
  local IS_OPTION = { COST = true, REMAINING = true } -- what may stand behind the entry id of an acknowledged job
  local FREE_KEEPS = 20 -- how often a job may be given back before each further time counts as an attempt

  -- ready_of: a ready stream, its space and its route; or nil and the refusal of the keys of a call.
  local function ready_of(redis_keys)
    local space, route_name
    if #redis_keys == 1 then space, route_name = keys.split_ready(redis_keys[1]) end
    if space then return redis_keys[1], space, route_name end
    return nil, refuse('BADARG', 'one key is needed: <prefix>:ready or <prefix>:ready:<route>')
  end

  -- read_entry: the fields of an entry, as a table and as the list that Redis has; nil where it is gone.
  function jobs.read_entry(stream, id)
    local found = call('XRANGE', stream, id, id)[1]
    if not found then return nil end
    return base.by_name(found[2]), found[2]
  end

  -- is_job: whether an entry is a job that can go back into a bucket.
  function jobs.is_job(fields)
    return fields.job and fields.bucket and is_bucket(fields.bucket) and (not fields.attempt or integer(fields.attempt))
      and (not fields.id or envelope.is_id(fields.id)) and (not fields.kept or integer(fields.kept))
  end

  -- not_pending: the reply of a call about entries that no worker holds: 0, or an error in a space without a record.
  local function not_pending(space)
    return context.has_no_record(space) and context.unknown(keys.of(space)) or 0
  end

  -- holder_of: the worker that holds an entry, and how often it was delivered; nil where none does, with the error
  -- where the key is no ready stream.
  local function holder_of(stream, id)
    local pending = pcall_redis('XPENDING', stream, 'workers', id, id, 1)
    local err = is_error(pending)
    if err then return nil, not find(err, 'NOGROUP', 1, true) and wrong_type(stream, 'stream') or nil end
    if pending[1] then return pending[1][2], pending[1][4] end
  end

  -- pending_job: the fields of the job of an entry that a worker holds, or nil and what `holder_of` replies.
  local function pending_job(stream, id)
    local worker, err = holder_of(stream, id)
    local fields = worker and jobs.read_entry(stream, id)
    if fields and jobs.is_job(fields) then return fields end
    return nil, not worker and err or nil
  end

  -- more_of: what is said of a job that is done, after its entry id: { units: what it really cost, reports: of the
  -- limits of the other side (jobs/limit_report) }, or nil and the error.
  local function more_of(args)
    local more, i = {}, 2
    if upper(args[2]) == 'COST' then
      more.units, i = adjust.units_of(args[3]), 4
      if not more.units or more.units < 0 then return nil, refuse('BADARG', NEEDS_UNITS) end
    end
    local err
    more.reports, err = limit_report.read(args, i)
    return more.reports and more, err
  end

  -- correct: a job really cost so many units.
  local function correct(ctx, route_name, id, fields, units)
    adjust.entry(ctx, route_name, id, fields, function(cost) return units - cost end)
  end

  -- with_more: an entry is about to be acknowledged, and this is said of its job. Replies nil, or an error having
  -- changed nothing. `more.nodes` gets the nodes that the reports are about.
  local function with_more(space, stream, route_name, id, more, now_us)
    local fields, err = pending_job(stream, id)
    if not fields then return err end
    local ctx = context.open(space, now_us)
    more.nodes, err = limit_report.nodes_of(ctx, fields.bucket, more.reports)
    if err then return err end
    more.left_us = integer(fields.at_us or '') or ctx.now
    if more.units then correct(ctx, route_name, id, fields, more.units) end
  end

  -- drip_ack: jobs are done: acknowledge and delete their entries.
  -- keys   a ready stream
  -- args   id [id ...] (1 to 1,000), or id [COST units] [REMAINING n RESET ms [LIMIT n] [UNITS job|cost] [IN budget]]
  --        ...: what that one really cost (jobs/adjust), and how much more the other side lets through (drip_told)
  -- reply  how many were pending; an id that was not is left alone
  -- errors BADARG TOOMANY WRONGTYPE; nothing is changed
  -- cost   O(ids)
  function jobs.ack(redis_keys, ids, now_us)
    local stream, space, route_name = ready_of(redis_keys)
    if not stream then return space end
    if #ids == 0 then return refuse('BADARG', 'no entry id given') end
    if #ids > 1000 then return refuse('TOOMANY', 'at most 1000 ids a call') end
    local full, more, err = {}, nil, nil
    if ids[2] and IS_OPTION[upper(ids[2])] then
      more, err = more_of(ids)
      if err then return err end
      ids = { ids[1] }
    end
    for i, id in ipairs(ids) do
      full[i] = entry_id(id)
      if not full[i] then return refuse('BADARG', 'argument ' .. i .. ' is no entry id: write <ms>-<seq>') end
    end
    err = more and with_more(space, stream, route_name, full[1], more, now_us)
    if err then return err end
    local first = pcall_redis('XACK', stream, 'workers', full[1])
    if is_error(first) then return wrong_type(stream, 'stream') end
    -- checks end here
    local done = { first == 1 and full[1] or nil }
    for i = 2, #full do
      if call('XACK', stream, 'workers', full[i]) == 1 then done[#done + 1] = full[i] end
    end
    if #done == 0 then return not_pending(space) end
    local k = keys.of(space)
    local counts = call('EXISTS', k.slots, k.slow, k.adjusted) > 0
    if counts then adjust.done(k, route_name, done) end
    if counts then throttle.done(space, stream, done, now_us) end
    position.delete(stream, done)
    if counts then release.entries(space, route_name, done, now_us) end
    if more and more.nodes then
      limit_report.apply(context.open(space, now_us), more.nodes, more.reports, more.left_us)
    end
    return #done
  end

  -- drip_adjust: a job cost more, or less, than it was charged.
  -- keys   a ready stream
  -- args   entry id, the difference in units: +n or -n
  -- reply  1, or 0: it is not pending any more, or was adjusted before; nothing changed
  -- errors BADARG WRONGTYPE; nothing is changed
  -- cost   O(log n)
  function jobs.adjust(redis_keys, args, now_us)
    local stream, space, route_name = ready_of(redis_keys)
    if not stream then return space end
    local id, units = entry_id(args[1] or ''), adjust.units_of(args[2])
    if not id or not units or #args ~= 2 then
      local most = digits(adjust.UNITS_MOST)
      return refuse('BADARG', 'adjust takes an entry id, and a difference in units, -' .. most .. ' to +' .. most)
    end
    local ctx = context.open(space, now_us)
    local fields, err = pending_job(stream, id)
    if not fields then return err or not_pending(space) end
    return adjust.entry(ctx, route_name, id, fields, function() return units end) and 1 or 0
  end

  -- count_deliveries: an entry was delivered so often. A worker that reads its history, or claims an entry without
  -- JUSTID, gets it again: each time is a try, and counts as one.
  function jobs.count_deliveries(fields, deliveries)
    if deliveries > 1 and jobs.is_job(fields) then
      fields.attempt = digits(integer(fields.attempt or '1') + deliveries - 1)
    end
  end

  -- is_used_up: whether a job was tried more often than its policy allows; by now a worker holds it once more.
  function jobs.is_used_up(ctx, fields)
    return jobs.is_job(fields) and integer(fields.attempt or '1') > policy_of(ctx.rec, fields.bucket).attempts
  end

  -- finish: an entry is finished: acknowledge and delete it, and free its slots. The first comes first: the job is
  -- somewhere else by now, and whatever raises it must not be in two places. (Slots that stay are freed by jobs/heal.)
  local function finish(ctx, stream, route_name, id)
    call('XACK', stream, 'workers', id)
    position.delete(stream, { id })
    release.entry(ctx, route_name, id)
    adjust.done(ctx.k, route_name, { id })
  end

  -- the fields that dead_entry writes
  local IS_OWN = { bucket = true, job = true, attempt = true, id = true, reason = true }

  -- bury: put a job into the dead stream and finish its entry. The other fields of a malformed entry are kept.
  local function bury(ctx, stream, route_name, id, fields, list, reason)
    local more = {}
    if jobs.is_job(fields) then
      local o = envelope.options_of(fields, list)
      o.deadline_us = nil
      envelope.add_fields(more, o)
    end
    if reason == 'malformed' then
      for i = 1, min(#list, 2000), 2 do
        if not IS_OWN[list[i]] then base.append(more, list[i], list[i + 1]) end
      end
    end
    local err =
      dead_entry.add(ctx, fields.bucket or '', fields.job or '', fields.attempt or '1', fields.id or id, reason, more)
    if err then return refuse('WRONGTYPE', ctx.k.dead .. ' does not take the job: ' .. err) end
    finish(ctx, stream, route_name, id)
    return 2
  end

  -- backoff_us: the wait after this attempt: initial * 2^(attempt - 1), at most max, no jitter.
  local function backoff_us(p, attempt)
    return min(p.backoff_max_us, p.backoff_initial_us * 2 ^ (attempt - 1))
  end

  -- take_back: a pending job failed, or is given back: it goes into its bucket's retry set, or to the dead.
  -- how    { reason, keep, dead, delay_us, first_us }: giving back (`keep`) does not count as an attempt, the first 20
  --        times; `first_us` is its time in the retry set, instead of now + the delay
  -- Replies 1 (retry) or 2 (dead), or an error having changed nothing.
  function jobs.take_back(ctx, stream, route_name, id, fields, list, how)
    if not jobs.is_job(fields) then return bury(ctx, stream, route_name, id, fields, list, 'malformed') end
    local name, attempt, kept = fields.bucket, integer(fields.attempt or '1'), integer(fields.kept or '0')
    local p = policy_of(ctx.rec, name)
    local counts = not how.keep or kept >= FREE_KEEPS
    if how.dead or (counts and attempt >= p.attempts) then
      return bury(ctx, stream, route_name, id, fields, list, how.reason)
    end
    local delay_us = how.delay_us or backoff_us(p, attempt)
    local ends, o = how.first_us or ctx.now + delay_us, envelope.options_of(fields, list, fields.id or id)
    if o.deadline_us and ends > o.deadline_us then return bury(ctx, stream, route_name, id, fields, list, 'expired') end
    local earlier, err = retries.add(ctx, name, {
      entry = id, route = route_name, delay_us = delay_us, attempt = counts and attempt + 1 or attempt,
      kept = how.keep and kept + 1 or kept, options = o, body = fields.job, is_throttled = how.first_us ~= nil,
      has_id = fields.id ~= nil,
    }, ends)
    if err then return refuse('WRONGTYPE', 'a retry set holds something else than a sorted set: ' .. err) end
    finish(ctx, stream, route_name, id)
    count(ctx, how.keep and 'kept' or 'failed', 1)
    if how.first_us then count(ctx, 'throttled', 1) end
    if earlier and ends < state.first_due(ctx) then ctx.earlier = true end
    return 1
  end

  -- options_of: the options after the entry id in a drip_fail, or nil and the error. Reports come last.
  local function options_of(args)
    local how, i, err = { reports = {} }, 2, nil
    while i <= #args do
      local option = upper(args[i])
      if option == 'REMAINING' then
        how.reports, err = limit_report.read(args, i)
        if err then return nil, err end
        break
      elseif option == 'COST' then
        i = i + 1
        how.units = adjust.units_of(args[i])
        if not how.units or how.units < 0 then return nil, refuse('BADARG', NEEDS_UNITS) end
      elseif option == 'KEEP' then how.keep = true
      elseif option == 'DEAD' then how.dead = true
      elseif option == 'REASON' then
        i = i + 1
        if not args[i] then return nil, refuse('BADARG', 'REASON needs a text') end
        how.reason = sub(args[i], 1, 1000)
      elseif option == 'RETRY_IN' or option == 'RETRY_AFTER' then
        i = i + 1
        local ms = base.whole(args[i], 0, DELAY_MAX_MS)
        if not ms then
          return nil, refuse('BADARG', option .. ' needs whole milliseconds, 0 to ' .. digits(DELAY_MAX_MS))
        end
        if option == 'RETRY_IN' then
          how.delay_us = ms * 1000
        else
          how.retry_after_us, how.is_of_throttled = ms > 0 and ms * 1000 or nil, true -- 0 names no time
        end
      elseif option == 'THROTTLED' then how.is_throttled = true
      elseif option == 'IN' then
        i = i + 1
        if not args[i] then return nil, refuse('BADARG', 'IN needs the name of a budget') end
        how.budget, how.is_of_throttled = args[i], true
      else
        local options = 'RETRY_IN ms, KEEP, DEAD, COST n, THROTTLED, RETRY_AFTER ms, IN budget, REASON text, REMAINING'
        return nil, refuse('BADARG', 'argument ' .. i .. ' is none of ' .. options)
      end
      i = i + 1
    end
    how.reason = how.reason or how.is_throttled and 'throttled' or 'failed'
    if how.is_throttled and (how.delay_us or how.dead) then
      return nil, refuse('BADARG', 'THROTTLED goes with RETRY_AFTER ms, IN budget, COST n and REASON text alone')
    elseif how.is_of_throttled and not how.is_throttled then
      return nil, refuse('BADARG', 'RETRY_AFTER and IN go with THROTTLED alone')
    end
    return how
  end

  -- slow_down: a job that was sent back slows down its bucket, or the budget that is named. Replies the node, or nil
  -- and an error having changed nothing; nil for an entry that is no job.
  local function slow_down(ctx, fields, worker, how)
    if not jobs.is_job(fields) then return nil end
    local id, err = node_change.node_of(ctx, fields.bucket, how.budget)
    if err then return nil, err end
    how.by = 'worker ' .. worker
    local begun = throttle.incident(ctx, id, integer(fields.at_us or '') or ctx.now, how)
    how.keep, how.delay_us, how.first_us = true, 0, max(0, begun - throttle.FIRST_US)
    return id
  end

  -- drip_fail: a job failed, or is given back.
  -- keys   a ready stream
  -- args   id [RETRY_IN ms] [KEEP] [DEAD] [COST units] [REASON text], or id THROTTLED [RETRY_AFTER ms] [IN budget]
  --        [COST units] [REASON text]: the receiver said that jobs come too fast, which slows the bucket down, or a
  --        budget above it. COST is what this try really cost (jobs/adjust); last of all
  --        [REMAINING n RESET ms [LIMIT n] [UNITS job|cost] [IN budget]] ...: how much more it lets through (drip_told)
  -- reply  1 it will be retried, 2 it is dead, 0 it was not pending any more and nothing changed
  -- errors BADARG WRONGTYPE; nothing is changed
  -- cost   O(log n)
  function jobs.fail(redis_keys, args, now_us)
    local stream, space, route_name = ready_of(redis_keys)
    if not stream then return space end
    local id = entry_id(args[1] or '')
    if not id then return refuse('BADARG', 'the first argument must be an entry id: <ms>-<seq>') end
    local how, err = options_of(args)
    if err then return err end
    local ctx = context.open(space, now_us)
    local worker, deliveries = holder_of(stream, id)
    if not worker then return deliveries or not_pending(space) end
    local fields, list = jobs.read_entry(stream, id)
    if fields then jobs.count_deliveries(fields, deliveries) end
    ctx.earlier, ctx.report = false, nil
    local outcome, slowed, nodes = 0, nil, nil
    if fields and jobs.is_job(fields) then
      nodes, err = limit_report.nodes_of(ctx, fields.bucket, how.reports)
      if err then return err end
    end
    if fields and how.units and jobs.is_job(fields) then correct(ctx, route_name, id, fields, how.units) end
    if fields and how.is_throttled then
      slowed, err = slow_down(ctx, fields, worker, how)
      if err then return err end
    end
    if fields then
      outcome = jobs.take_back(ctx, stream, route_name, id, fields, list, how)
    else
      release.entry(ctx, route_name, id) -- somebody deleted the pending entry: the reaper acknowledges it
    end
    if is_error(outcome) then
      memory.distrust(ctx.memory) -- what was noted in memory is not written
      return outcome
    end
    if slowed then node_change.reconcile(ctx, slowed) else state.flush(ctx) end
    if nodes then limit_report.apply(ctx, nodes, how.reports, integer(fields.at_us or '')) end
    if ctx.earlier then context.wake(ctx.k) end
    return outcome
  end
end
