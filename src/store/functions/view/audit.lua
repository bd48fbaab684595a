-- needs: base, base.keys, base.names, context, context.memory, limits.slots, pace.share, policy.chain, policy.record,
--   route, view.constraints_audit
-- Audit: for tests. It reads everything that is stored in a space and replies what breaks an invariant.

local audit = {}
do
  local PROBLEMS_MOST = 100

  -- What is true between any two calls; docs/engine.md has the same words.
  audit.invariants = {
    'A node is in one state: in one of the sets, or in none.',
    'A budget that something waits for is in a state with work.',
    'The budgets hash has each budget with work, its state and its score there, and no idle one.',
    'The waiting hash has each node that is queued or held, its line and its due there, and no other.',
    'A bucket whose jobs a call has seen, or with a retry that was announced, is in a state with work.',
    'The index of retries has each bucket with delayed jobs, no later than the first of them, and their number is stored.',
    'An entry that holds slots is in flight, and its line in the slots hash and the members of inflight name the same nodes.',
    'A blocked node has no slot free, a paused one is paused by a setting, and the chain of a refused one cannot be resolved.',
    'Of each slow-down, window, told limit and payment it is stored when it is over, and no bucket is scheduled before what holds it ends.',
    'In the memory of this server there are as many finish tags as it counts.',
    'In the line of a route stand nodes without a budget above them that have work for it: buckets that are due, and budgets that are scheduled or held. A held budget stands in the line of each of its routes, a queued one in the line of the budget above it for each of them, and no bucket below a budget in the line of a route.',
  }

  -- word_of: a key without its prefix, as the states of budgets are stored.
  local function word_of(k, key) return sub(key, #k.prefix + 2) end

  -- states_of: of each node all sets that it is in, with the due there.
  local function states_of(k, found)
    local all = {}
    local function add(id, state, due)
      all[id] = all[id] or {}
      all[id][#all[id] + 1] = { state = state, due = due }
    end
    local function scan(key)
      local members = call('ZRANGE', key, '0', '-1', 'WITHSCORES')
      for i = 1, #members, 2 do add(members[i], word_of(k, key), members[i + 1] + 0) end
    end
    for _, name in ipairs({ 'schedule', 'rest', 'paused', 'full', 'refused' }) do scan(k[name]) end
    local held = ' ' .. (call('HGET', k.policy, 'held') or '') .. ' '
    for _, key in ipairs(call('KEYS', k.wait .. '*')) do
      local of, of_route = match(sub(key, #k.wait + 1), '^(.*){(.+)}$')
      if not of then found(4, key .. ' is there, and no version since 37 of this library writes it') end
      if of == '' and not find(held, ' ' .. of_route .. ' ', 1, true) then
        found(4, 'nodes wait for ' .. of_route .. ', and the policy key does not name it')
      end
      for _, member in ipairs(call('ZRANGE', key, '0', '-1')) do
        local id, due = sub(member, 17), sub(member, 1, 16)
        all[id] = all[id] or {}
        if chain.budget_of(id) then
          all[id].places = all[id].places or {}
          all[id].places[of .. '{' .. of_route .. '}'] = due + 0
        else
          add(id, word_of(k, key), due + 0)
          local stored, wanted = call('HGET', k.waiting, id), due .. ' ' .. sub(key, #k.wait + 1)
          if stored ~= wanted then
            found(4, id .. ' waits in ' .. word_of(k, key) .. ', and waiting says ' .. tostring(stored))
          end
        end
      end
      if of and of ~= '' then
        local parent = chain.id_of(of)
        all[parent] = all[parent] or {}
        all[parent].lines = all[parent].lines or {}
        all[parent].lines[of_route] = true
      end
    end
    local waits = call('HGETALL', k.waiting)
    for i = 1, #waits, 2 do
      local id, text = waits[i], waits[i + 1]
      if chain.budget_of(id) then add(id, 'wait:' .. sub(text, 18), sub(text, 1, 16) + 0) end
    end
    return all
  end

  -- look_at_places: compare the places of a budget in lines with its state, and with the routes of its own lines.
  local function look_at_places(id, states, routes, state, found)
    local places, parent = states.places or {}, match(state or '', '^wait:(.*){}$')
    for name, place in gmatch(routes, '/([^/=]+)=(%d+)') do
      local key, is_held = '{' .. name .. '}', parent == ''
      if not (states.lines and states.lines[name]) then found(11, id .. ' names ' .. name .. ', without a line') end
      if (places[key] or 0) ~= place + 0 or is_held and place == '0' then
        found(11, id .. ' stands in the line of ' .. name .. ' at ' .. tostring(places[key]) .. ', and says ' .. place)
      end
      if places[key] and not is_held and state ~= 'schedule' then found(11, id .. ' is ' .. state .. ' in a line') end
      places[key] = nil
      local above = parent and parent ~= '' and parent .. key
      if above and places[above] ~= states[1].due then found(11, id .. ' has no place in ' .. above) end
      if above then places[above] = nil end
      if states.lines then states.lines[name] = nil end
    end
    local extra, line = next(places), states.lines and next(states.lines)
    if extra then found(11, id .. ' stands in ' .. extra .. ', where it has no work') end
    if line then found(11, id .. ' has a line for ' .. line .. ' and does not know it') end
  end

  -- in_flight: whether an entry is in its stream, and undelivered or pending.
  local function in_flight(space, route_name, id)
    local stream = keys.ready(space, route_name)
    if not call('XRANGE', stream, id, id)[1] then return false end
    local group = route.group_of(stream)
    return not group
      or names.is_after(id, group['last-delivered-id'])
      or #call('XPENDING', stream, 'workers', id, id, 1) > 0
  end

  -- look_at_slots: compare the lines of entries that hold slots with the members of nodes; and look for blocked nodes
  -- with a free slot.
  local function look_at_slots(ctx, found)
    local k, held = keys.of(ctx.space), {}
    local lines = call('HGETALL', k.slots)
    for i = 1, #lines, 2 do
      local name, route_name, id = lines[i], slots.split(lines[i])
      if not route_name then
        found(7, 'slots holds ' .. name .. ', which is no entry')
      elseif not in_flight(ctx.space, route_name, id) then
        found(7, name .. ' holds slots and is not in flight')
      end
      for _, node in ipairs(slots.nodes_of(lines[i + 1])) do held[slots.member(node, name)] = true end
    end
    for _, member in ipairs(call('ZRANGE', k.inflight, '0', '-1')) do
      local node, name = slots.split_member(member)
      if not node then
        found(7, 'inflight holds ' .. member)
      elseif not held[member] then
        found(7, name .. ' counts at ' .. node .. ', and its line does not say so')
      end
      held[member] = nil
    end
    for member in pairs(held) do found(7, gsub(member, '\n', ': ') .. ' is in a line and does not count') end
    for _, id in ipairs(ctx.rec and call('ZRANGE', k.full, '0', '-1') or {}) do
      local p = record.policy_of(ctx.rec, id)
      if not ctx.old_rec and not (p and slots.is_full(ctx, id, p)) then
        found(8, id .. ' waits for a slot and has one free')
      end
    end
  end

  -- look_at_orders: look for refused nodes whose chain can be resolved, and for paused nodes without a pause.
  local function look_at_orders(ctx, found)
    if not ctx.rec or ctx.old_rec then return end
    local problems = {
      refused = ' waits for its budgets, which can be found',
      paused = ' is paused no more, and stands there',
    }
    for state, problem in pairs(problems) do
      for _, id in ipairs(call('ZRANGE', ctx.k[state], '0', '-1')) do
        local p = record.policy_of(ctx.rec, id)
        if p and not p[state] then found(8, id .. problem) end
      end
    end
  end

  -- look_at_tags: compare how many finish tags this server remembers with how many it counts.
  local function look_at_tags(space, found)
    local m = memory.of(space, call('HGET', keys.of(space).policy, 'id') or nil)
    local shares, known = m.budgets and m.budgets.shares or share.none(), 0
    for _, of_budget in pairs(shares.of) do
      for _ in pairs(of_budget.tags) do known = known + 1 end
    end
    if known ~= shares.tag_count then
      found(10, known .. ' children of budgets are known, and ' .. shares.tag_count .. ' were counted')
    end
  end

  -- drip__audit: what is wrong. A queue that no call has seen since a plain LPUSH is in no state: wake it first.
  -- Entries that hold slots and were changed by hand are for the healing pass to find: heal (jobs/heal) first.
  -- keys   <prefix>:policy
  -- args   now_us; without it the audit does not look for free slots, chains that can be resolved and pauses that have
  --        ended
  -- reply  { a sentence, ... }, at most 100; none: all is well
  -- cost   O(everything): for tests only
  function audit.audit(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    if not space then return base.refuse('BADARG', 'audit takes the policy key') end
    local k, problems = keys.of(space), {}
    local function found(n, sentence)
      if #problems < PROBLEMS_MOST then
        problems[#problems + 1] = sentence .. '. (' .. n .. ': ' .. audit.invariants[n] .. ')'
      end
    end
    local all, rest, wait = states_of(k, found), word_of(k, k.rest), word_of(k, k.wait)
    local function state_of(id) return all[id] and all[id][1] and all[id][1].state end
    for id, states in pairs(all) do
      if #states > 1 then found(1, id .. ' is in ' .. states[1].state .. ' and in ' .. states[2].state) end
      if states.lines and (not states[1] or states[1].state == rest) then
        found(2, 'something waits for ' .. id .. ', which stands ' .. (states[1] and 'at rest' or 'nowhere'))
      end
      if chain.budget_of(id) then
        local text = call('HGET', k.budgets, id)
        local at, routes, state = match(text or '', '^%d+ %d+ %S+ (%d+) (/%S*) (.+)$')
        look_at_places(id, states, routes or '', state, found)
        if states[1] and state ~= states[1].state and (text or states[1].state ~= rest) then
          found(3, id .. ' is in ' .. states[1].state .. ', and budgets says ' .. tostring(text))
        elseif states[1] and text and at + 0 ~= states[1].due then
          found(3, id .. ' is in ' .. state .. ' at ' .. base.digits(states[1].due) .. ', and budgets says ' .. at)
        end
      end
    end
    for _, id in ipairs(call('HKEYS', k.budgets)) do
      if not state_of(id) then found(3, id .. ' is known and is in no set') end
    end
    for _, id in ipairs(call('HKEYS', k.waiting)) do
      local state = state_of(id)
      if not state or sub(state, 1, #wait) ~= wait then
        found(4, id .. ' is in ' .. tostring(state) .. ', and waiting knows it')
      end
    end
    for _, queue in ipairs(call('KEYS', k.queues .. '*')) do
      local name = sub(queue, #k.queues + 1)
      local state = state_of(name)
      if names.is_bucket(name) and (not state or state == rest) then
        found(5, name .. ' has jobs and is ' .. (state and 'cooling' or 'in no set'))
      end
    end
    local retries_of = call('ZRANGE', k.retries, '0', '-1', 'WITHSCORES')
    for i = 1, #retries_of, 2 do
      local name, state = retries_of[i], state_of(retries_of[i])
      if tonumber(retries_of[i + 1]) == huge and (not state or state == rest) then
        found(5, name .. ' has a retry that was announced and stands ' .. (state and 'at rest' or 'nowhere'))
      end
    end
    local waiting_aside, counted = 0, call('GET', k.delays)
    for _, key in ipairs(call('KEYS', k.delayed .. '*')) do
      waiting_aside = waiting_aside + call('ZCARD', key)
      local name = sub(key, #k.delayed + 1)
      local ends, first = tonumber(call('ZSCORE', k.retries, name) or nil), base.first_score(key)
      if not ends or ends ~= huge and ends > first and call('EXISTS', k.retry .. name) == 0 then
        found(6, name .. ' has a delayed job that nobody knows of')
      end
    end
    if tonumber(counted or 0) ~= waiting_aside then
      found(6, waiting_aside .. ' delayed jobs wait, and delays says ' .. tostring(counted))
    end
    for _, name in ipairs(call('HKEYS', k.turns)) do
      if call('EXISTS', k.delayed .. name) == 0 then found(6, name .. ' has a turn and no delayed job') end
    end
    constraints_audit.check(space, all, function(sentence) found(9, sentence) end)
    look_at_tags(space, found)
    local ctx = args[1] and context.open(space, args[1]) or { space = space }
    look_at_slots(ctx, found)
    look_at_orders(ctx, found)
    for id, states in pairs(ctx.rec and not ctx.old_rec and all or {}) do
      local p = record.policy_of(ctx.rec, id)
      local top = (states[1] and match(states[1].state, '^wait:({.*})$') or states.places and next(states.places)) or ''
      if sub(top, 1, 1) == '{' and p and p.parent then found(11, id .. ' has a budget and stands in ' .. top) end
      if not chain.budget_of(id) and sub(top, 1, 1) == '{' and states[1].due > ctx.now then
        found(11, id .. ' waits for a route and is not due')
      end
    end
    table.sort(problems)
    return problems
  end
end
