-- The atomic door: push, and peek, which tells without changing anything.

-- read_bucket: the state of the bucket behind a queue key, or an error.
local function read_bucket(keys, now_us)
  if #keys ~= 1 then return nil, nil, refuse('BADARG', 'one key is needed: <prefix>:queue:<bucket>') end
  local prefix, bucket = split_queue(keys[1])
  if not prefix or not valid_name(bucket) then
    return nil, nil, refuse('BADBUCKET', 'the key must be <prefix>:queue:<bucket>, and the bucket 1 to 200 bytes of UTF-8'
      .. ' without control characters, { or }')
  end
  local ctx = open(prefix, now_us)
  local len = pcall_redis('LLEN', keys[1])
  if is_error(len) then return nil, nil, refuse('WRONGTYPE', 'the key of this queue holds something else than a list') end
  local due, held_by = tonumber(call('ZSCORE', ctx.schedule, bucket) or nil), nil
  if not due then due, held_by = held_due(ctx, bucket) end
  local level = tonumber(call('HGET', ctx.level_key, bucket) or nil)
  return ctx, look(ctx, ctx.bucket, bucket, keys[1], len, due, level), nil, held_by
end

-- is_idle: whether nothing of a bucket could have left by now, so that the time since its due earns no credit.
local function is_idle(ctx, s)
  if s.len > 0 then return false end
  local ends = tonumber(call('ZSCORE', ctx.retries, s.bucket) or nil)
  return not ends or (ends > ctx.now and ends ~= huge)
end

-- drip_push: put jobs into a bucket, never over its capacity nor past its gates. It never dispatches.
-- keys   <prefix>:queue:<bucket>
-- args   job [job ...] (1 to 1,000)
-- reply  { accepted, depth, capacity, retry_after_ms or -1, eta_ms or -1 }
-- errors BADBUCKET BADARG TOOMANY TOOLARGE WRONGTYPE OOM; nothing is changed
-- cost   O(jobs)
local function push(keys, jobs, now_us)
  if #keys == 1 and #jobs == 0 then return refuse('BADARG', 'no job given') end
  if #jobs > 1000 then return refuse('TOOMANY', 'at most 1000 jobs a call; split the push') end
  local ctx, s, err, held_by = read_bucket(keys, now_us)
  if err then return err end
  local gates
  gates, err = read_gates(ctx, s)
  if err then return err end
  local p, limit = s.p, ctx.limits.max_job_bytes
  for i = 1, #jobs do
    if #jobs[i] > limit then
      return refuse('TOOLARGE', 'job ' .. i .. ' has ' .. #jobs[i] .. ' bytes, limits.max_job_bytes is ' .. limit)
    end
  end
  local drop = p.overflow == 'drop-oldest'
  if s.over > 0 or (drop and s.len + #jobs > p.capacity) then
    local rejected = ctx.prefix .. ':rejected'
    if is_error(pcall_redis('XLEN', rejected)) then return refuse('WRONGTYPE', rejected .. ' holds something else than a stream') end
  end
  -- checks end here
  settle(ctx, s)
  local accepted = #jobs
  if not drop and s.len + accepted > p.capacity then accepted = max(0, p.capacity - s.len) end
  accepted = let_in(gates, accepted)
  if accepted < #jobs then count(ctx, 'rejected', #jobs - accepted) end
  if accepted > 0 then
    if not s.due or (s.due < ctx.now and is_idle(ctx, s)) then s.due = ctx.now end
    charge_gates(gates, accepted)
    call('LPUSH', keys[1], unpack(jobs, 1, accepted))
    local level = s.len > p.capacity and s.len or p.capacity
    s.len = s.len + accepted
    if s.len > level then
      s.over, s.len = s.len - level, level
      cut(ctx, s)
    end
  end
  if s.due then store_due(ctx, s, held_by) end
  local due = held_by and max(s.due, ctx.now) or s.due or ctx.now
  local wait = -1
  if accepted < #jobs then
    wait = gates_wait_ms(gates)
    if s.len >= p.capacity and not drop then wait = max(wait, retry_after_ms(due, ctx.now)) end
  end
  return {
    accepted, s.len, p.capacity, wait,
    accepted == 0 and -1 or eta_ms(p, due, ctx.now, s.len),
  }
end

-- drip_peek: how full a bucket is. It does not ask the gates: whoever pushes plainly does not pass them.
-- keys   <prefix>:queue:<bucket>
-- reply  { 0, depth, capacity, retry_after_ms or -1 (there is room), eta_ms of the next job or -1 (none waits) }
-- errors BADBUCKET BADARG WRONGTYPE
-- cost   O(1)
local function peek(keys, args, now_us)
  if #args > 0 then return refuse('BADARG', 'peek takes a key and nothing else') end
  local ctx, s, err, held_by = read_bucket(keys, now_us)
  if err then return err end
  local due = held_by and max(s.due, ctx.now) or s.due or ctx.now
  local full = s.len >= s.p.capacity and s.p.overflow ~= 'drop-oldest'
  return {
    0, s.len, s.p.capacity,
    full and retry_after_ms(due, ctx.now) or -1,
    s.len == 0 and -1 or eta_ms(s.p, due, ctx.now, 1),
  }
end

-- drip__look: everything that is true of one bucket, for `dripd status`.
-- keys   <prefix>:queue:<bucket>
-- args   now_us
-- reply  { depth, capacity, due in us from now (-1 = not scheduled), held 0/1, retries, count, period_us, lease_ms,
--          attempts, overflow, route, { { limiter, limit, remaining, ms until it lets one in }, ... for each gate } }
-- errors as peek
-- cost   O(1)
local function look_at(keys, args)
  local ctx, s, err, held_by = read_bucket(keys, args[1])
  if err then return err end
  local gates
  gates, err = read_gates(ctx, s)
  if err then return err end
  for i, gate in ipairs(gates) do
    gates[i] = { gate.name, gate.p.limit, max(0, gate.state.free), gate_wait_ms(gate) }
  end
  local p, retries = s.p, pcall_redis('ZCARD', retry_key(ctx, s.bucket))
  return {
    s.len, p.capacity, s.due and max(0, s.due - ctx.now) or -1, held_by and 1 or 0, is_error(retries) and 0 or retries,
    p.count, p.period_us, p.lease_ms, p.attempts, p.overflow, p.route, gates,
  }
end
