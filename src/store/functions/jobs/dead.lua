-- needs: base, base.events, base.glob, base.keys, base.names, context, jobs, policy.record, queue.envelope,
--   queue.retries, state
-- Dead letters: the stream of jobs that were given up. Operators list them, put them back and drop them. Every call is
-- bounded and replies where the next one begins.
--
-- A filter, the first arguments after the time:
--   after    begin after this entry ('' = the beginning)       upto     and stop with this one ('' = the newest)
--   bucket   a glob ('' = any)                                 reason   a glob ('' = any): of a reason, as of a name,
--                                                                       the first 1,000 bytes are compared
--   id       a job's stable id in its bucket, or the id of its entry here ('' = any)

local dead = {}
do
  local refuse, is_error, digits, integer = base.refuse, base.is_error, base.digits, base.integer
  local entry_id = names.entry_id

  local LOOK_BATCHES = 4 -- entries that one call looks at, in batches
  local FIND_MOST = 1000 -- and finds
  local COMPARED = 1000 -- bytes of a reason or a name that are compared with a glob
  local FILTER = 5 -- arguments of a filter
  local NO_ID = '0-0' -- the id of a job that was never dispatched (queue/retries)

  -- open: the context of a call and its filter; or nil, and the error.
  local function open(redis_keys, args)
    local space = #redis_keys == 1 and keys.space_before(redis_keys[1], 'dead')
    if not space then return nil, nil, refuse('BADARG', 'one key is needed: <prefix>:dead') end
    local after, upto, of_bucket, of_reason, id =
      args[2] or '', args[3] or '', args[4] or '', args[5] or '', args[6] or ''
    if id ~= '' and not envelope.is_id(id) then
      return nil, nil, refuse('BADARG', 'the id of a job is 1 to 200 bytes of ! to ~')
    end
    for _, one in ipairs({ after, upto }) do
      if one ~= '' and not entry_id(one) then return nil, nil, refuse('BADARG', 'an entry id is <ms>-<seq>') end
    end
    if #of_bucket > glob.LONGEST or #of_reason > glob.LONGEST then
      return nil, nil, refuse('BADARG', 'a glob has at most ' .. glob.LONGEST .. ' bytes')
    end
    local ctx = context.open(space, args[1])
    if is_error(pcall_redis('XLEN', ctx.k.dead)) then
      return nil, nil, base.wrong_type(ctx.k.dead, 'stream')
    end
    return ctx, {
      from = after == '' and '-' or '(' .. after, last = after, upto = upto == '' and '+' or upto,
      bucket = of_bucket ~= '' and glob.compile(of_bucket), reason = of_reason ~= '' and glob.compile(of_reason),
      id = id ~= '' and (entry_id(id) or id), steps = 0,
    }
  end

  -- is_matched: whether a glob of a filter matches a text, the steps of which are counted.
  local function is_matched(filter, pieces, text)
    text = sub(text or '', 1, COMPARED)
    filter.steps = filter.steps + glob.steps(pieces, #text)
    return glob.matches(pieces, text)
  end

  -- finds: whether a filter matches an entry.
  local function finds(filter, id, fields)
    return (not filter.bucket or is_matched(filter, filter.bucket, fields.bucket))
      and (not filter.reason or is_matched(filter, filter.reason, fields.reason))
      and (not filter.id or filter.id == id or filter.id == (entry_id(fields.id or '') or fields.id))
  end

  -- is_malformed: whether an entry has no job that could go back: it was malformed when it came here (jobs,
  -- queue/retries), or somebody else wrote it.
  local function is_malformed(fields)
    return not jobs.is_job(fields) or fields.id == NO_ID or fields.reason == 'malformed' and fields.job == ''
  end

  -- walk: pass the entries that match a filter to `visit(id, fields, list)`, until that has replied true `most` times.
  -- They are read one by one, because the size of the next one is not known. Replies where the next call begins, or ''
  -- at the end.
  -- cost   O(entries looked at): at most some batches, 1 MiB or one entry, and as many as a call may compare with globs
  local function walk(ctx, filter, most, visit)
    local looked, found, look_most = 0, 0, LOOK_BATCHES * ctx.limits.batch
    while found < most and looked < look_most and ctx.bytes < MIB and filter.steps < glob.STEPS_MOST do
      local entry = call('XRANGE', ctx.k.dead, filter.from, filter.upto, 'COUNT', '1')[1]
      if not entry then return '' end
      local id, list = entry[1], entry[2]
      local fields = base.by_name(list)
      for _, text in ipairs(list) do ctx.bytes = ctx.bytes + #text end
      looked, filter.last, filter.from = looked + 1, id, '(' .. id
      if finds(filter, id, fields) and visit(id, fields, list) then found = found + 1 end
    end
    return filter.last
  end

  -- most_of: an argument for a number of entries; '' is all.
  local function most_of(text, bound)
    if (text or '') == '' then return bound end
    local n = integer(text)
    if n and n >= 1 then return min(n, bound) end
  end

  local function bad_number()
    return refuse('BADARG', 'how many is a whole number from 1 on')
  end

  -- drip__dead_list: entries, oldest first.
  -- keys   <prefix>:dead
  -- args   now_us, the filter, how many at most ('' or up to 1,000)
  -- reply  { where the next call begins ('' = that was all), { { entry id, malformed 0/1, { field, value, ... } }, ...
  --        } }
  -- errors BADARG WRONGTYPE
  -- cost   see `walk`
  function dead.list(redis_keys, args)
    local ctx, filter, err = open(redis_keys, args)
    if err then return err end
    local most, list = most_of(args[FILTER + 2], FIND_MOST), {}
    if not most then return bad_number() end
    local on = walk(ctx, filter, most, function(id, fields, flat)
      list[#list + 1] = { id, is_malformed(fields) and 1 or 0, flat }
      return true
    end)
    return { on, list }
  end

  -- drip__dead_count: how many entries match a filter, by bucket, with the present rates of the buckets.
  -- keys   <prefix>:dead
  -- args   now_us, the filter, how many at most ('' = all), "1": malformed ones count towards that | "0"
  -- reply  { where the next call begins, upto (of the filter; '' became the newest entry), malformed,
  --          { bucket, how many, count, period_us, ... } without the malformed ones }
  -- errors BADARG WRONGTYPE
  -- cost   see `walk`
  function dead.count(redis_keys, args)
    local ctx, filter, err = open(redis_keys, args)
    if err then return err end
    local most, malformed, by_name, list = most_of(args[FILTER + 2], huge), 0, {}, {}
    if not most then return bad_number() end
    if filter.upto == '+' then
      local newest = call('XREVRANGE', ctx.k.dead, '+', '-', 'COUNT', '1')[1]
      filter.upto = newest and newest[1] or NO_ID
    end
    local on = walk(ctx, filter, most, function(_, fields)
      if is_malformed(fields) then
        malformed = malformed + 1
        return args[FILTER + 3] == '1'
      end
      by_name[fields.bucket] = (by_name[fields.bucket] or 0) + 1
      return true
    end)
    for name, n in pairs(by_name) do
      local p = record.policy_of(ctx.rec, name)
      base.append(list, name, n, p.count, p.period_us)
    end
    return { on, filter.upto, malformed, list }
  end

  -- change: the common part of retry and drop. An operator's command takes many calls and is one event. The first call
  -- that changes something writes the event, the last one replaces it by one with the result of all.
  -- args   now_us, the filter, how many at most ('' = all), by, user, match and before (base/events), the event of this
  --        command ('' = none yet), how many its earlier calls changed
  -- reply  { where the next call begins, changed, malformed that were left alone, others that were left alone, entries
  --        now in the stream, the event, notes }
  -- errors BADARG WRONGTYPE; nothing is changed
  local function change(redis_keys, args, kind, one)
    local ctx, filter, err = open(redis_keys, args)
    if err then return err end
    local most, at = most_of(args[FILTER + 2], huge), FILTER + 3
    local event, so_far = args[at + 4] or '', integer(args[at + 5] or '0')
    if not most or not so_far then return bad_number() end
    if event ~= '' and not entry_id(event) then return refuse('BADARG', 'an event is an entry id') end
    local now_most, changed, malformed, kept = min(most, ctx.limits.batch), 0, 0, 0
    -- checks end here
    ctx.earlier = false
    local on = walk(ctx, filter, now_most, function(id, fields, list)
      local outcome = one(ctx, id, fields, list, now_most - changed)
      if outcome == 'changed' then
        changed = changed + 1
        call('XDEL', ctx.k.dead, id)
        return true
      elseif outcome == 'malformed' then
        malformed = malformed + 1
      else
        kept = kept + 1
      end
    end)
    local is_last, total = on == '' or changed >= most, so_far + changed
    if changed > 0 then context.count(ctx, kind.counter, changed) end
    if changed > 0 and event == '' or is_last and total > 0 then
      event = events.replace(ctx.k, event, {
        what = kind.what, match = args[at + 2], before = args[at + 3], by = args[at], user = args[at + 1],
        after = is_last and digits(total) .. ' ' .. kind.done or 'begun',
      })
      ctx.earlier = true -- the daemons log it
    end
    if ctx.earlier then context.wake(ctx.k) end
    return { on, changed, malformed, kept, call('XLEN', ctx.k.dead), event, context.notes_of(ctx) }
  end

  -- put_back: a dead job becomes a retry of attempt 1 whose back-off has ended. `rank` is 1 for the last one of this
  -- call: they leave in the order in which they died. The id of its entry here makes the stored job unique, so adding
  -- it twice stores one job.
  local function put_back(ctx, id, fields, list, rank)
    if is_malformed(fields) then return 'malformed' end
    local name, ends = fields.bucket, ctx.now - rank
    local o = envelope.options_of(fields, list, fields.id or id)
    o.deadline_us = nil
    local earlier, err = retries.add(ctx, name, {
      entry = id, route = record.policy_of(ctx.rec, name).route, delay_us = 0, attempt = 1, kept = 0, options = o,
      body = fields.job, has_id = true,
    }, ends)
    if err then
      context.note(ctx, 'refused', ctx.k.retry .. name, err)
      return 'kept'
    end
    if earlier and ends < state.first_due(ctx) then ctx.earlier = true end
    return 'changed'
  end

  -- drip__dead_retry: put jobs back through their buckets: ahead of the queue, at the bucket's rate, with their bytes
  -- and their id. Malformed entries are left alone.
  -- keys   <prefix>:dead
  -- args, reply, errors  see `change`
  -- cost   O(batch * log n), and see `walk`
  function dead.retry(redis_keys, args)
    return change(redis_keys, args, { what = 'dead-retry', done = 'put back', counter = 'dead_retried' }, put_back)
  end

  -- drip__dead_drop: delete entries, malformed ones too.
  -- keys   <prefix>:dead
  -- args, reply, errors  see `change`
  -- cost   O(batch), and see `walk`
  function dead.drop(redis_keys, args)
    local kind = { what = 'dead-drop', done = 'dropped', counter = 'dead_dropped' }
    return change(redis_keys, args, kind, function() return 'changed' end)
  end
end
