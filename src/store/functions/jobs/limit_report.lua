-- needs: base, base.keys, base.names, context, jobs.node_change, limits.constraints, limits.slots, pace.told,
--   policy.chain, policy.record, tree.budget
-- Limit reports: the other side says how much more it lets through. A worker passes that on with the job that was
-- answered (jobs), or anybody by drip_told. (What follows from it is in pace/told.)

local limit_report = {}
do
  local refuse, digits, integer = base.refuse, base.digits, base.integer
  local policy_of = record.policy_of

  local MOST = 1000000000 -- jobs, or units of cost
  local MOST_MS = 366 * 86400000
  local TIME_FROM_MS, TIME_TO_MS = base.TIME_FROM_MS, 99999999999999 -- such a reset is a time, since 1970
  local CLOCKS_US = 86400000000 -- a time may lie so much further ahead: the caller took it from another clock
  local REPORTS_MOST = 4 -- in a call
  local ROUTES_MOST = 1000 -- routes in which jobs that are out are looked for
  -- Entries that are read for jobs that are out, and how many of a route at once; and 1 MiB of them.
  local OUT_READ, OUT_AT_ONCE = 16000, 50
  local UNITS = { JOB = 'job', COST = 'cost' }
  local OPTIONS = 'REMAINING n RESET ms LIMIT n UNITS job|cost IN budget'

  -- number: a whole number from `least` on of an option, or nil and the error.
  local function number(option, text, least, most)
    local n = base.whole(text, least, most)
    if n then return n end
    return nil, refuse('BADARG', option .. ' needs a whole number, ' .. least .. ' to ' .. digits(most))
  end

  -- option_of: read one option of a report into `how`. Replies whether it is one, and an error.
  local function option_of(how, option, value)
    local err
    if option == 'RESET' then
      how.reset_ms, how.resets_at_ms = base.whole(value, 0, MOST_MS), base.whole(value, TIME_FROM_MS, TIME_TO_MS)
      if not how.reset_ms and not how.resets_at_ms then
        err = refuse('BADARG', 'RESET needs a whole number, 0 to ' .. digits(MOST_MS) .. ', or a time in ms since 1970')
      end
    elseif option == 'LIMIT' then
      how.limit, err = number(option, value, 1, MOST)
    elseif option == 'UNITS' then
      how.unit = UNITS[upper(value or '')]
      err = not how.unit and refuse('BADARG', 'UNITS needs job or cost') or nil
    elseif option == 'IN' then
      how.budget = value
      err = not value and refuse('BADARG', 'IN needs the name of a budget') or nil
    else
      return false
    end
    return true, err
  end

  -- read: the reports among some arguments from the i-th on, each of which begins with REMAINING; or nil and the error.
  function limit_report.read(args, i)
    local list = {}
    while i <= #args do
      local option, how, is_option, err = upper(args[i]), list[#list], true, nil
      if option == 'REMAINING' then
        how = { unit = 'job' }
        list[#list + 1] = how
        how.left, err = number(option, args[i + 1], 0, MOST)
      elseif how then
        is_option, err = option_of(how, option, args[i + 1])
      else
        is_option = false
      end
      if err then return nil, err end
      if not is_option then
        return nil, refuse('BADARG', 'argument ' .. i .. ' is none of ' .. OPTIONS .. ', which begin with REMAINING')
      end
      i = i + 2
    end
    if #list > REPORTS_MOST then return nil, refuse('TOOMANY', 'at most ' .. REPORTS_MOST .. ' reports a call') end
    for _, how in ipairs(list) do
      if not how.reset_ms and not how.resets_at_ms then
        return nil, refuse('BADARG', 'REMAINING needs RESET ms too')
      end
    end
    return list
  end

  -- change_of: change the told limits of a node: `act` gets them and the policy of the node; `how` has who and why.
  -- Replies what `act` replies.
  local function change_of(ctx, id, how, act)
    return node_change.apply(ctx, id, how, function(constraint, p)
      constraint.told = constraint.told or {}
      local reply = act(constraint.told, p)
      if not next(constraint.told) then constraint.told = nil end
      return reply
    end)
  end

  -- is_below: whether a bucket is this node, or below it.
  local function is_below(ctx, name, id)
    local at = name
    while at and at ~= id do
      local p = policy_of(ctx.rec, at)
      at = p and not p.refused and p.parent or nil
    end
    return at == id
  end

  -- count_page: count the jobs of a node among the next entries of a ready stream as those are that leave later
  -- (tree/path). Replies how many entries there were and how many bytes, and where the next page begins, nil: that was
  -- all.
  -- writes  slots, inflight
  local function count_page(ctx, id, route_name, from)
    local found, bytes = pcall_redis('XRANGE', keys.ready(ctx.space, route_name), from, '+', 'COUNT', OUT_AT_ONCE), 0
    if base.is_error(found) then return 0, 0, nil end
    for _, entry in ipairs(found) do
      local fields = base.by_name(entry[2])
      local name = fields.bucket
      bytes, from = bytes + #(fields.job or ''), '(' .. entry[1]
      if name and names.is_bucket(name) and is_below(ctx, name, id) then slots.add(ctx, route_name, entry[1], id) end
    end
    return #found, bytes, #found == OUT_AT_ONCE and from or nil
  end

  -- count_out: a node is told of for the first time: count its jobs that are out. They may be out on any route: its own
  -- may have changed since. A page of each route in turn, so that a long one hides none of the others.
  -- cost   O(routes + OUT_READ), at most 1 MiB and a page of each route
  local function count_out(ctx, id)
    local list, entries, bytes = pcall_redis('SMEMBERS', ctx.k.routes), 0, 0
    local left = {}
    for i = 1, base.is_error(list) and 0 or min(#list, ROUTES_MOST) do left[i] = { name = list[i], from = '-' } end
    while left[1] and entries < OUT_READ and bytes < MIB do
      local more = {}
      for _, one in ipairs(left) do
        local n, size
        n, size, one.from = count_page(ctx, id, one.name, one.from)
        entries, bytes = entries + n, bytes + size
        if one.from then more[#more + 1] = one end
      end
      left = more
    end
  end

  -- is_told: whether something is told of a node.
  local function is_told(ctx, id)
    local constraint
    if chain.budget_of(id) then
      constraint = budget.get(ctx, id).constraint
    else
      constraint = constraints.of(ctx, id, policy_of(ctx.rec, id))
    end
    return constraint and constraint.told ~= nil
  end

  -- take: take one report about a node. Replies whether it counts.
  local function take(ctx, id, how, left_us)
    if policy_of(ctx.rec, id).told == 'off' then return false end
    if not is_told(ctx, id) then count_out(ctx, id) end
    local at_ms = how.resets_at_ms
    local given = {
      unit = how.unit, left = how.left, limit = how.limit, left_us = left_us, is_time = at_ms ~= nil,
      reset_us = at_ms and min(max(0, at_ms * 1000 - ctx.now), MOST_MS * 1000) or how.reset_ms * 1000,
      period_us = at_ms and left_us and min(max(0, at_ms * 1000 - left_us), MOST_MS * 1000),
      out = slots.count(ctx, id), -- of what jobs cost, one each is known
    }
    context.count(ctx, 'told', 1)
    local counts = change_of(ctx, id, how, function(t, p) return told.report(t, p, given, ctx.now) end)
    node_change.reconcile(ctx, id)
    return counts
  end

  -- too_far: the refusal of a report that resets at a time which lies too far ahead, or nil.
  local function too_far(ctx, how)
    if how.resets_at_ms and how.resets_at_ms * 1000 > ctx.now + MOST_MS * 1000 + CLOCKS_US then
      return refuse('BADARG', 'RESET is more than 366 days ahead')
    end
  end

  -- nodes_of: the node that each report of a bucket is about, or nil and the error.
  function limit_report.nodes_of(ctx, name, list)
    local nodes, err = {}, nil
    for i, how in ipairs(list) do
      nodes[i], err = node_change.node_of(ctx, name, how.budget)
      err = err or too_far(ctx, how)
      if err then return nil, err end
    end
    return nodes
  end

  -- apply: take the reports with the answer to a job of a bucket, which left at `left_us`.
  function limit_report.apply(ctx, nodes, list, left_us)
    ctx.report = nil
    for i, how in ipairs(list) do take(ctx, nodes[i], how, left_us) end
    if list[1] then context.wake(ctx.k) end
  end

  -- clear: forget what was told about a node.
  local function clear(ctx, id, how)
    local reply = change_of(ctx, id, how, function(t)
      local any = next(t) ~= nil
      for key in pairs(t) do t[key] = nil end
      return any
    end)
    node_change.report(ctx, 'told', id, '', 'cleared', how)
    node_change.reconcile(ctx, id)
    return reply
  end

  -- options_of: the arguments of a drip_told: { given (nil: clear), budget }, or nil and the error.
  local function options_of(args)
    if upper(args[1] or '') == 'CLEAR' then
      if args[2] and (upper(args[2]) ~= 'IN' or #args ~= 3) then
        return nil, refuse('BADARG', 'CLEAR goes with IN budget alone')
      end
      return { budget = args[3] }
    end
    local given = { 'REMAINING', args[1] or '', 'RESET', args[2] or '' }
    for i = 3, #args do given[i + 2] = args[i] end
    local list, err = limit_report.read(given, 1)
    if err then return nil, err end
    if #list ~= 1 then return nil, refuse('BADARG', 'drip_told takes one report: remaining reset_ms, and options') end
    return { given = list[1], budget = list[1].budget }
  end

  -- answer: take the report of a call, or forget what was told. Replies 1, or 0: that changes nothing.
  local function answer(ctx, id, how)
    local counts, err = nil, how.given and too_far(ctx, how.given)
    if err then return err end
    if how.given then counts = take(ctx, id, how.given, nil) else counts = clear(ctx, id, how) end
    context.wake(ctx.k)
    return counts and 1 or 0
  end

  -- drip_told: the other side says how much more it lets through.
  -- keys   <prefix>:queue:<bucket>
  -- args   remaining reset_ms [LIMIT n] [UNITS job|cost] [IN budget]: so much more is let through until the reset, in
  --        jobs, or in what they cost; reset_ms from now, or from 10^11 on a time since 1970, at most 366 days ahead (a
  --        reset over a day ahead is asked for again after a day); or CLEAR [IN budget]: forget what was told
  -- reply  1, or 0: it changes nothing, because a lower report counts, it is older than the last reset, or the policy
  --        says told = "off"
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n), and for the first report about a node O(jobs that are out)
  function limit_report.told(redis_keys, args, now_us)
    local ctx, id, how = node_change.of_bucket(redis_keys, args, now_us, options_of)
    if not ctx then return id end
    return answer(ctx, id, how)
  end

  -- drip__told_node: the same for any bucket or budget, for operators.
  -- keys   <prefix>:policy
  -- args   now_us, JSON: node (its id), in (a budget above it), remaining, reset_ms, limit, units (none: clear), by,
  --        user, reason
  -- reply  as drip_told
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n)
  function limit_report.told_node(redis_keys, args)
    local takes = 'told_node takes the policy key, and JSON: node, in, remaining, reset_ms, limit, units'
    local ctx, id, how = node_change.of_operator(redis_keys, args, takes, function(how)
      if not how.remaining then return nil end
      local given = { 'REMAINING', tostring(how.remaining), 'RESET', tostring(how.reset_ms or ''), 'UNITS',
        tostring(how.units or 'job') }
      if how.limit then base.append(given, 'LIMIT', tostring(how.limit)) end
      local list, err = limit_report.read(given, 1)
      how.given = list and list[1]
      return err
    end)
    if not ctx then return id end
    return answer(ctx, id, how)
  end
end
