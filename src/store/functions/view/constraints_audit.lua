-- needs: base, base.keys, policy.chain
-- Audit of the constraints, a part of drip__audit: each of them is stored consistently, so that every reader finds it
-- and it can be dropped when it expires.

local constraints_audit = {}
do
  -- check: pass what is wrong to `found`; `states` has the states of each node.
  function constraints_audit.check(space, states, found)
    local k, stored = keys.of(space), {}
    for _, key in ipairs({ k.slow, k.windows, k.told, k.paid }) do
      for _, id in ipairs(call('HKEYS', key)) do stored[id] = true end
    end
    for id in pairs(stored) do
      if not call('ZSCORE', k.over, id) then found(id .. ' has a constraint, and no end of it is stored') end
    end
    for _, id in ipairs(call('ZRANGE', k.over, '0', '-1')) do
      if not stored[id] then found(id .. ' has no constraint, and the end of one is stored') end
    end
    local flags = call('HGET', k.policy, 'brakes') or ''
    local flag_of = { [k.uncounted] = 'c', [k.slow] = 's', [k.windows] = 'q', [k.told] = 't', [k.paid] = 'p' }
    for key, flag in pairs(flag_of) do
      local is_there = call('EXISTS', key) == 1
      if is_there and not find(flags, flag, 1, true) then
        found(key .. ' is there, and the policy key does not say so')
      end
    end
    -- A bucket that a constraint holds is scheduled no earlier than its end, unless it is in another state.
    for _, key in ipairs({ k.slow, k.windows, k.told }) do
      local all = call('HGETALL', key)
      for i = 1, #all, 2 do
        local id, held, at = all[i], tonumber(match(all[i + 1], '^%d+ %d+/(%d+)')), states[all[i]] and states[all[i]][1]
        if held and held > 0 and at and at.state == 'schedule' and at.due < held and not chain.budget_of(id) then
          local due = base.digits(at.due)
          found(id .. ' is held until ' .. base.digits(held) .. ' and stands on the schedule at ' .. due)
        end
      end
    end
  end
end
