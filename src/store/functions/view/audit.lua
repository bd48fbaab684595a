-- needs: base, base.call, base.keys, base.memory, base.names, jobs.slots, policy.chain, policy.record, route,
--   tree.share, view.brakes_audit
-- Audit: for tests. It looks at everything that is stored in a space and says what is not as it must be between two calls.

local audit = {}
do
  local TOLD_MOST = 100

  -- word_of: a key without its prefix, as the places of budgets are stored.
  local function word_of(k, key) return sub(key, #k.prefix + 2) end

  -- places_of: of each node all places in which it stands, with the due there.
  local function places_of(k, found)
    local all = {}
    local function add(id, place, due)
      all[id] = all[id] or {}
      all[id][#all[id] + 1] = { place = place, due = due }
    end
    local function scan(key)
      local members = call('ZRANGE', key, '0', '-1', 'WITHSCORES')
      for i = 1, #members, 2 do add(members[i], word_of(k, key), members[i + 1] + 0) end
    end
    for _, name in ipairs({ 'schedule', 'rest', 'paused', 'full', 'refused' }) do scan(k[name]) end
    for _, key in ipairs(call('KEYS', k.held .. '*')) do found(key .. ' is there, and no version since 20 of this library writes it') end
    local held = ' ' .. (call('HGET', k.policy, 'held') or '') .. ' '
    for _, key in ipairs(call('KEYS', k.wait .. '*')) do
      local members = call('ZRANGE', key, '0', '-1')
      for _, member in ipairs(members) do
        local id, due, place = sub(member, 17), sub(member, 1, 16), word_of(k, key)
        add(id, place, due + 0)
        local said = call('HGET', k.waiting, id)
        local wanted = due .. ' ' .. sub(key, #k.wait + 1)
        if said ~= wanted then found(id .. ' waits in ' .. place .. ', and waiting says ' .. tostring(said)) end
      end
      local name = sub(key, #k.wait + 1)
      local of_route = match(name, '^{(.*)}$')
      if of_route and not find(held, ' ' .. of_route .. ' ', 1, true) then found('buckets are held for ' .. of_route .. ', and the policy key does not name it') end
      if not of_route then
        local parent = chain.id_of(name)
        all[parent] = all[parent] or {}
        all[parent].has_work = true
      end
    end
    return all
  end

  -- in_flight: whether an entry is in its stream, and undelivered or pending.
  local function in_flight(space, route_name, id)
    local stream = keys.ready(space, route_name)
    if not call('XRANGE', stream, id, id)[1] then return false end
    local group = route.group_of(stream)
    return not group or names.is_after(id, group['last-delivered-id']) or #call('XPENDING', stream, 'workers', id, id, 1) > 0
  end

  -- look_at_slots: the entries that hold slots, as their lines have it and as the nodes have it, and who waits for one.
  local function look_at_slots(ctx, found)
    local k, held = keys.of(ctx.space), {}
    local lines = call('HGETALL', k.slots)
    for i = 1, #lines, 2 do
      local name, route_name, id = lines[i], slots.split(lines[i])
      if not route_name then
        found('slots holds ' .. name .. ', which is no entry')
      elseif not in_flight(ctx.space, route_name, id) then
        found(name .. ' holds slots and is not in flight')
      end
      for _, node in ipairs(slots.nodes_of(lines[i + 1])) do held[slots.member(node, name)] = true end
    end
    for _, member in ipairs(call('ZRANGE', k.inflight, '0', '-1')) do
      local node, name = slots.split_member(member)
      if not node then
        found('inflight holds ' .. member)
      elseif not held[member] then
        found(name .. ' counts at ' .. node .. ', and its line does not say so')
      end
      held[member] = nil
    end
    for member in pairs(held) do found(gsub(member, '\n', ': ') .. ' stands in a line and does not count') end
    for _, id in ipairs(ctx.rec and call('ZRANGE', k.full, '0', '-1') or {}) do
      local p = record.policy_of(ctx.rec, id)
      if not ctx.prev and not (p and slots.is_full(ctx, id, p)) then found(id .. ' waits for a slot and has one free') end
    end
  end

  -- look_at_orders: who waits for budgets that are there, or for the end of a pause that is over.
  local function look_at_orders(ctx, found)
    if not ctx.rec or ctx.prev then return end
    for _, id in ipairs(call('ZRANGE', ctx.k.refused, '0', '-1')) do
      local p = record.policy_of(ctx.rec, id)
      if p and not p.refused then found(id .. ' waits for its budgets, which can be found') end
    end
    for _, id in ipairs(call('ZRANGE', ctx.k.paused, '0', '-1')) do
      local p = record.policy_of(ctx.rec, id)
      if p and not p.paused then found(id .. ' is paused no more, and stands there') end
    end
  end

  -- look_at_tags: how many children of budgets this server knows, and how many it believes to know.
  local function look_at_tags(space, found)
    local m = memory.of(space, call('HGET', keys.of(space).policy, 'id') or nil)
    local shares, known = m.budgets and m.budgets.shares or share.none(), 0
    for _, of_budget in pairs(shares.of) do
      for _ in pairs(of_budget.tags) do known = known + 1 end
    end
    if known ~= shares.tag_count then found(known .. ' children of budgets are known, and ' .. shares.tag_count .. ' were counted') end
  end

  -- drip__audit: what is wrong. A queue that nobody has looked at since a plain push stands nowhere: wake it before.
  -- What was done by hand to entries that hold slots is for the reaper to find: heal (jobs/heal) before.
  -- keys   <prefix>:policy
  -- args   now_us; without it nobody is asked whether what it waits for is there: a free slot, its budgets, the end of a pause
  -- reply  { a sentence, ... }, at most 100; none: all is well
  -- cost   O(everything): for tests only
  function audit.audit(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    if not space then return base.refuse('BADARG', 'audit takes the policy key') end
    local k, told = keys.of(space), {}
    local function found(sentence)
      if #told < TOLD_MOST then told[#told + 1] = sentence end
    end
    local all, rest, wait = places_of(k, found), word_of(k, k.rest), word_of(k, k.wait)
    for id, stands in pairs(all) do
      if #stands > 1 then found(id .. ' stands in ' .. stands[1].place .. ' and in ' .. stands[2].place) end
      if stands.has_work and (not stands[1] or stands[1].place == rest) then
        found('something waits for ' .. id .. ', which stands ' .. (stands[1] and 'at rest' or 'nowhere'))
      end
      if chain.budget_of(id) then
        local text = call('HGET', k.budgets, id)
        local at, place = match(text or '', '^%d+ %d+ %S+ (%d+) (.+)$')
        if stands[1] and place ~= stands[1].place and (text or stands[1].place ~= rest) then
          found(id .. ' stands in ' .. stands[1].place .. ', and budgets says ' .. tostring(text))
        elseif stands[1] and text and at + 0 ~= stands[1].due then
          found(id .. ' stands in ' .. place .. ' at ' .. base.digits(stands[1].due) .. ', and budgets says ' .. at)
        end
      end
    end
    for _, id in ipairs(call('HKEYS', k.budgets)) do
      if not (all[id] and all[id][1]) then found(id .. ' is known and stands nowhere') end
    end
    for _, id in ipairs(call('HKEYS', k.waiting)) do
      local place = all[id] and all[id][1] and all[id][1].place
      if not place or sub(place, 1, #wait) ~= wait then found(id .. ' stands in ' .. tostring(place) .. ', and waiting knows it') end
    end
    for _, queue in ipairs(call('KEYS', k.queues .. '*')) do
      local name = sub(queue, #k.queues + 1)
      local place = all[name] and all[name][1] and all[name][1].place
      if not place or place == rest then found(name .. ' has jobs and stands ' .. (place and 'at rest' or 'nowhere')) end
    end
    local retries_of = call('ZRANGE', k.retries, '0', '-1', 'WITHSCORES')
    for i = 1, #retries_of, 2 do
      local name = retries_of[i]
      local place = all[name] and all[name][1] and all[name][1].place
      if tonumber(retries_of[i + 1]) == huge and (not place or place == rest) then
        found(name .. ' has a retry that was announced and stands ' .. (place and 'at rest' or 'nowhere'))
      end
    end
    local waiting_aside, counted = 0, call('GET', k.delays)
    for _, key in ipairs(call('KEYS', k.delayed .. '*')) do
      waiting_aside = waiting_aside + call('ZCARD', key)
      local name = sub(key, #k.delayed + 1)
      local ends, first = tonumber(call('ZSCORE', k.retries, name) or nil), call('ZRANGE', key, '0', '0', 'WITHSCORES')[2] + 0
      if not ends or ends ~= huge and ends > first and call('EXISTS', k.retry .. name) == 0 then
        found(name .. ' has a delayed job that nobody knows of')
      end
    end
    if tonumber(counted or 0) ~= waiting_aside then found(waiting_aside .. ' delayed jobs wait, and delays says ' .. tostring(counted)) end
    for _, name in ipairs(call('HKEYS', k.turns)) do
      if call('EXISTS', k.delayed .. name) == 0 then found(name .. ' has a turn and no delayed job') end
    end
    brakes_audit.check(space, all, found)
    look_at_tags(space, found)
    local ctx = args[1] and context.open(space, args[1]) or { space = space }
    look_at_slots(ctx, found)
    look_at_orders(ctx, found)
    table.sort(told)
    return told
  end
end
