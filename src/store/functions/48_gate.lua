-- Gates: the limiters that a policy names in `admit`, before the doors that run code. A plain LPUSH runs none.
--
-- A gate's state is one key: <prefix>:gate:<limiter>:<n>:<bucket>, n being its place among the gates of that recipe in the
-- policy. It expires.

local NO_GATES = {}

-- read_gates: each gate of a bucket, and how things stand at it; or nil and the error.
local function read_gates(ctx, s)
  if #s.p.gates == 0 then return NO_GATES end
  local gates = {}
  for n, gate in ipairs(s.p.gates) do
    local key = ctx.prefix .. ':gate:' .. gate.name .. ':' .. gate.place .. ':' .. s.bucket
    local state = {}
    local err = gate.limiter.read(state, key, ctx.now, gate.p, gate.given)
    if err then return nil, redis.error_reply(err.err .. ' (gate ' .. key .. ')') end
    gates[n] = { name = gate.name, limiter = gate.limiter, p = gate.p, state = state }
  end
  return gates
end

-- let_in: how many of n the gates allow.
local function let_in(gates, n)
  for i = 1, #gates do n = min(n, max(0, gates[i].state.free)) end
  return n
end

local function charge_gates(gates, n)
  for i = 1, #gates do gates[i].limiter.charge(gates[i].state, gates[i].p, n) end
end

-- gate_wait_ms: until a gate lets one more in; 0 when it does now.
local function gate_wait_ms(gate)
  return gate.state.free >= 1 and 0 or gate.limiter.wait_ms(gate.state, gate.p, 1)
end

-- gates_wait_ms: the longest of them.
local function gates_wait_ms(gates)
  local wait = 0
  for _, gate in ipairs(gates) do wait = max(wait, gate_wait_ms(gate)) end
  return wait
end
