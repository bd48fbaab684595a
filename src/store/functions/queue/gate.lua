-- needs: base, base.keys
-- Gates: the limiters that a policy names in `admit`. Every push that runs a function passes them; a plain LPUSH runs
-- none.
--
-- The state of a gate is one key, which expires. Its place in the key is its place among the gates of the same recipe
-- in the policy.

local gate = {}
do
  local NONE = {}

  -- read: the gates of a bucket, each with its state; or nil and the error.
  function gate.read(ctx, s)
    if #s.p.gates == 0 then return NONE end
    local gates = {}
    for n, wanted in ipairs(s.p.gates) do
      local key, state = keys.gate(ctx.space, wanted.name, wanted.place, s.bucket), {}
      local err = wanted.limiter.read(state, key, ctx.now, wanted.p, wanted.given)
      if err then return nil, redis.error_reply(err.err .. ' (gate ' .. key .. ')') end
      gates[n] = { name = wanted.name, limiter = wanted.limiter, p = wanted.p, state = state }
    end
    return gates
  end

  -- let_in: how many of n jobs all gates allow.
  function gate.let_in(gates, n)
    for i = 1, #gates do n = min(n, max(0, gates[i].state.free)) end
    return n
  end

  -- charge: n jobs pass.
  function gate.charge(gates, n)
    for i = 1, #gates do gates[i].limiter.charge(gates[i].state, gates[i].p, n) end
  end

  -- wait_ms: until this gate lets one more job in; 0 where it does now.
  function gate.wait_ms(one)
    return one.state.free >= 1 and 0 or one.limiter.wait_ms(one.state, one.p, 1)
  end

  -- slowest: until all gates do, and the name of the one with that wait; nil where all let a job in.
  function gate.slowest(gates)
    local wait, name = 0, nil
    for _, one in ipairs(gates) do
      local ms = max(0, gate.wait_ms(one))
      if one.state.free < 1 and (not name or ms > wait) then wait, name = ms, one.name end
    end
    return wait, name
  end
end
