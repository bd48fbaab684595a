-- needs: base, base.keys, base.names, context, jobs.throttle, limits.constraint_store, limits.constraints,
--   limits.slots, pace.told, policy.chain, policy.forward, policy.record, tree.budget
-- Limit reports: the other side says how much more it lets through. A worker passes that on with the job that was
-- answered (jobs), or anybody by drip_told. (What follows from it is in pace/told.)

local limit_report = {}
do
  local refuse, digits = base.refuse, base.digits
  local policy_of = record.policy_of

  local MOST = 1000000000 -- jobs, or units of cost
  local MOST_MS = 366 * 86400000
  local REPORTS_MOST = 4 -- in a call
  local OUT_READ, OUT_AT_ONCE = 1000, 50 -- entries of a ready stream that are read for jobs that are out; and 1 MiB
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
      how.reset_ms, err = number(option, value, 0, MOST_MS)
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
      if not how.reset_ms then return nil, refuse('BADARG', 'REMAINING needs RESET ms too') end
    end
    return list
  end

  -- change_of: change the told limits of a node: `act` gets them and the policy of the node. Replies what it replies.
  local function change_of(ctx, id, act)
    local p = policy_of(ctx.rec, id)
    local function tell(constraint)
      constraint.told = constraint.told or {}
      local reply = act(constraint.told, p)
      if not next(constraint.told) then constraint.told = nil end
      return reply
    end
    if chain.budget_of(id) then return budget.slow_down(ctx, id, tell) end
    local constraint = constraints.ensure(ctx, id, p)
    constraint_store.change(ctx, constraint)
    return tell(constraint)
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

  -- count_out: a node is told of for the first time: from now on its jobs that are out are counted as those are that
  -- leave later (tree/path). Only those of one route, and only the first ones.
  -- reads   a ready stream      writes  slots, inflight      cost  O(OUT_READ), at most 1 MiB of it
  local function count_out(ctx, id, route_name)
    if not route_name or forward.of(ctx.rec, route_name) then return end
    local stream, from, bytes = keys.ready(ctx.space, route_name), '-', 0
    for _ = 1, OUT_READ / OUT_AT_ONCE do
      local found = pcall_redis('XRANGE', stream, from, '+', 'COUNT', OUT_AT_ONCE)
      if base.is_error(found) then return end
      for _, entry in ipairs(found) do
        local fields = base.by_name(entry[2])
        local name = fields.bucket
        bytes, from = bytes + #(fields.job or ''), '(' .. entry[1]
        if name and names.is_bucket(name) and is_below(ctx, name, id) then slots.add(ctx, route_name, entry[1], id) end
      end
      if #found < OUT_AT_ONCE or bytes >= MIB then return end
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

  -- take: take one report about a node, whose jobs that are out are in the ready stream of a route, where that is
  -- known. Replies whether it counts.
  local function take(ctx, id, how, left_us, route_name)
    if policy_of(ctx.rec, id).told == 'off' then return false end
    if not is_told(ctx, id) then count_out(ctx, id, route_name) end
    local given = {
      unit = how.unit, left = how.left, reset_us = how.reset_ms * 1000, limit = how.limit, left_us = left_us,
      out = slots.count(ctx, id), -- of what jobs cost, one each is known
    }
    context.count(ctx, 'told', 1)
    local counts = change_of(ctx, id, function(t, p) return told.report(t, p, given, ctx.now) end)
    throttle.reconcile(ctx, id)
    return counts
  end

  -- nodes_of: the node that each report of a bucket is about, or nil and the error.
  function limit_report.nodes_of(ctx, name, list)
    local nodes, err = {}, nil
    for i, how in ipairs(list) do
      nodes[i], err = throttle.node_of(ctx, name, how.budget)
      if err then return nil, err end
    end
    return nodes
  end

  -- apply: take the reports with the answer to a job of a bucket, which left at `left_us` for a route.
  function limit_report.apply(ctx, nodes, list, left_us, route_name)
    ctx.report = nil
    for i, how in ipairs(list) do take(ctx, nodes[i], how, left_us, route_name) end
    if list[1] then context.wake(ctx.k) end
  end

  -- clear: forget what was told about a node.
  local function clear(ctx, id, how)
    ctx.report = { what = 'told', match = id, before = '', after = 'cleared', by = how.by, user = how.user,
      reason = how.reason }
    local reply = change_of(ctx, id, function(t)
      local any = next(t) ~= nil
      for key in pairs(t) do t[key] = nil end
      return any
    end)
    throttle.reconcile(ctx, id)
    return reply
  end

  -- drip_told: the other side says how much more it lets through.
  -- keys   <prefix>:queue:<bucket>
  -- args   remaining reset_ms [LIMIT n] [UNITS job|cost] [IN budget]: so much more is let through until the reset, in
  --        jobs, or in what they cost; or CLEAR [IN budget]: forget what was told
  -- reply  1, or 0: it changes nothing, because a lower report counts, it is older than the last reset, or the policy
  --        says told = "off"
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n), and for the first report about a node O(jobs that are out)
  function limit_report.told(redis_keys, args, now_us)
    local space, name, err = keys.bucket_of(redis_keys)
    if err then return err end
    local is_clear, list = upper(args[1] or '') == 'CLEAR', { {} }
    if is_clear and args[2] then
      if upper(args[2]) ~= 'IN' or #args ~= 3 then return refuse('BADARG', 'CLEAR goes with IN budget alone') end
      list[1].budget = args[3]
    elseif not is_clear then
      local given = { 'REMAINING', args[1] or '', 'RESET', args[2] or '' }
      for i = 3, #args do given[i + 2] = args[i] end
      list, err = limit_report.read(given, 1)
      if err then return err end
      if #list ~= 1 then return refuse('BADARG', 'drip_told takes one report: remaining reset_ms, and options') end
    end
    local ctx, nodes = context.open(space, now_us), nil
    nodes, err = limit_report.nodes_of(ctx, name, list)
    if err then return err end
    ctx.report = nil
    local counts
    local route_name = policy_of(ctx.rec, name).route
    if is_clear then counts = clear(ctx, nodes[1], {}) else counts = take(ctx, nodes[1], list[1], nil, route_name) end
    context.wake(ctx.k)
    return counts and 1 or 0
  end

  -- drip__told_node: the same for any bucket or budget, for operators.
  -- keys   <prefix>:policy
  -- args   now_us, JSON: node (its id), in (a budget above it), remaining, reset_ms, limit, units (none: clear), by,
  --        user, reason
  -- reply  as drip_told
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n)
  function limit_report.told_node(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    local ok, how = pcall(cjson.decode, args[2] or '')
    if not space or not ok or type(how) ~= 'table' or type(how.node) ~= 'string' then
      return refuse('BADARG', 'told_node takes the policy key, and JSON: node, in, remaining, reset_ms, limit, units')
    end
    local budget_name = chain.budget_of(how.node)
    if not names.is_bucket(budget_name or how.node) then
      return refuse('BADBUCKET', 'no bucket or budget can have that name')
    end
    local list, err = { {} }, nil
    if how.remaining then
      local given = { 'REMAINING', tostring(how.remaining), 'RESET', tostring(how.reset_ms or ''), 'UNITS',
        tostring(how.units or 'job') }
      if how.limit then base.append(given, 'LIMIT', tostring(how.limit)) end
      list, err = limit_report.read(given, 1)
      if err then return err end
    end
    local ctx, id = context.open(space, args[1]), nil
    ctx.report = nil
    if not policy_of(ctx.rec, how.node) then return chain.unknown(budget_name) end
    id, err = throttle.node_of(ctx, how.node, how['in'])
    if err then return err end
    local counts
    local route_name = policy_of(ctx.rec, how.node).route -- a budget has none
    if how.remaining then counts = take(ctx, id, list[1], nil, route_name) else counts = clear(ctx, id, how) end
    context.wake(ctx.k)
    return counts and 1 or 0
  end
end
