-- Policies: the record that says what applies to a bucket, and the arithmetic of its rate.
--
-- <prefix>:policy is a hash. `id` and `record` are the configuration in force (JSON, written whole by a daemon under a
-- random id); `prev` is the record before it while the change spreads (45_sweep); `held` names the routes that are full.

-- What holds where no record is stored.
local BUILT_IN = {
  defaults = {
    count = 10, period_us = 1000000, capacity = 1000, lease_ms = 60000, attempts = 5,
    backoff_initial_us = 1000000, backoff_max_us = 600000000, overflow = 'reject', route = 'default',
    catch_up_us = 20000,
  },
  buckets = {},
  limits = { max_job_bytes = 1048576, rejected_keep = 10000, max_ready = 10000, batch = 100 },
}

-- Compile a glob as Redis reads it in KEYS, on bytes: * ? [a-z] [^a] and \ for the next byte as it is.
local function compile_glob(glob)
  local literal = match(glob, '^([^%*%?%[\\]*)%*?$')
  if literal then return { literal = literal, open = sub(glob, -1) == '*' } end
  local tokens, i, n = {}, 1, #glob
  while i <= n do
    local c = byte(glob, i)
    if c == 42 then -- *
      if tokens[#tokens] ~= '*' then tokens[#tokens + 1] = '*' end
    elseif c == 63 then -- ?
      tokens[#tokens + 1] = '?'
    elseif c == 91 then -- [
      local class, negated = {}, false
      i = i + 1
      if byte(glob, i) == 94 then negated, i = true, i + 1 end
      while i <= n and byte(glob, i) ~= 93 do
        local from = byte(glob, i)
        if from == 92 and i < n then
          i = i + 1
          class[byte(glob, i)] = true
        elseif byte(glob, i + 1) == 45 and i + 2 <= n then
          local to = byte(glob, i + 2)
          for b = min(from, to), max(from, to) do class[b] = true end
          i = i + 2
        else
          class[from] = true
        end
        i = i + 1
      end
      tokens[#tokens + 1] = { class = class, negated = negated }
    else
      if c == 92 and i < n then i, c = i + 1, byte(glob, i + 1) end
      tokens[#tokens + 1] = c
    end
    i = i + 1
  end
  return tokens
end

-- Two fingers and one way back, to the last star: linear for a glob with one star, and never exponential.
local function matches(glob, name)
  if glob.literal then
    if glob.open then return sub(name, 1, #glob.literal) == glob.literal end
    return name == glob.literal
  end
  local g, s, star, resume = 1, 1, nil, nil
  while s <= #name do
    local token = glob[g]
    local b = byte(name, s)
    local hit = token == '?' or token == b
    if type(token) == 'table' then hit = (token.class[b] or false) ~= token.negated end
    if token == '*' then
      star, resume, g = g, s, g + 1
    elseif hit then
      g, s = g + 1, s + 1
    elseif star then
      resume = resume + 1
      g, s = star + 1, resume
    else
      return false
    end
  end
  while glob[g] == '*' do g = g + 1 end
  return glob[g] == nil
end

-- A gate is a limiter and its arguments, as its function takes them after the key; its place is that among the gates of the
-- same recipe.
local function prepare_gate(gate, place)
  local limiter = limiters[gate.limiter]
  if not limiter then error('no limiter ' .. gate.limiter) end
  local p, err = learn(limiter, gate.args)
  if not p then error(err.err) end
  return { name = gate.limiter, place = place, limiter = limiter, p = p, given = gate.args[limiter.takes + 1] ~= nil }
end

-- An interval is `step` microseconds and `part`/count of one more.
local function prepare_policy(p)
  p.step = floor(p.period_us / p.count)
  p.part = p.period_us - p.step * p.count
  p.interval_us = p.part == 0 and p.step or p.step + 1
  p.lease = digits(p.lease_ms)
  p.gates = {}
  local places = {}
  for n, gate in ipairs(p.admit or {}) do
    places[gate.limiter] = (places[gate.limiter] or 0) + 1
    p.gates[n] = prepare_gate(gate, places[gate.limiter])
  end
  return p
end

local function prepare_record(record)
  prepare_policy(record.defaults)
  for _, entry in ipairs(record.buckets) do
    prepare_policy(entry.policy)
    entry.glob = compile_glob(entry.match)
  end
  record.found, record.found_count = {}, 0
  record.plain = #record.buckets == 0 and record.defaults or nil
  record.quarter = max(1, floor(record.limits.batch / 4))
  return record
end

-- policy_of: the first [[bucket]] entry that matches, else the defaults. Answers are kept, at most 10,000 of them.
local function policy_of(record, bucket)
  if record.plain then return record.plain end
  local p = record.found[bucket]
  if p then return p end
  p = record.defaults
  for _, entry in ipairs(record.buckets) do
    if matches(entry.glob, bucket) then p = entry.policy break end
  end
  if record.found_count >= 10000 then record.found, record.found_count = {}, 0 end
  record.found[bucket], record.found_count = p, record.found_count + 1
  return p
end

-- offset: where the k-th of `count` equal parts of a period begins, in whole microseconds. The products stay below
-- 2^53: k * step <= period, k * part < count^2 <= 10^12.
local function offset(p, k)
  return k * p.step + floor(k * p.part / p.count)
end

-- after: one interval after `t`. Where the interval is not a whole number of microseconds the remainder is carried
-- without being stored: time is cut into periods since the epoch and each into `count` parts as equal as whole
-- microseconds allow, and a due keeps its distance to the beginning of its part. Any n intervals in a row then add up
-- to n * period / count, to within 1 us.
local function after(p, t)
  if p.part == 0 then return t + p.step end
  local base = floor(t / p.period_us) * p.period_us
  local r = t - base
  local k = floor(r / p.period_us * p.count)
  while offset(p, k) > r do k = k - 1 end
  while offset(p, k + 1) <= r do k = k + 1 end
  return base + offset(p, k + 1) + (r - offset(p, k))
end

-- eta_ms: when the n-th waiting job is due, rounded up; 0 when it could leave now.
local function eta_ms(p, due, now, n)
  local us = due - now + (n - 1) * p.step + (n - 1) * p.part / p.count
  return us > 0 and ceil(us / 1000) or 0
end

local function retry_after_ms(due, now)
  return max(1, ceil((due - now) / 1000))
end

-- Decoded records by their random id. Library locals outlive FLUSHALL and are shared by all databases, hence the id.
local records, record_count = {}, 0

local function decode_record(json)
  local ok, record = pcall(cjson.decode, json)
  if not ok or type(record) ~= 'table' or not record.defaults then return nil end
  ok, record = pcall(prepare_record, record)
  if ok then return record end
end

local built_in_json, built_in
at_first_call[#at_first_call + 1] = function()
  built_in_json = cjson.encode(BUILT_IN)
  built_in = decode_record(built_in_json)
end

local function record_of(policy_key, id, field)
  if not id or id == 'built-in' then return built_in end
  local record = records[id]
  if record then return record end
  record = decode_record(call('HGET', policy_key, field) or '') or built_in
  if record_count >= 64 then records, record_count = {}, 0 end
  records[id], record_count = record, record_count + 1
  return record
end

-- What this server remembers of a prefix between calls: nothing that is missed when it is gone.
--   clock   the time of the last call            sweep   where the sweep stands (45_sweep)
--   counts, lates  figures not yet written       leases  lease_ms of entries seen by reap
--   settled  how many jobs the last dispatches left in their queues, of buckets that are scheduled (47_wake); settled_count
--            of them were noted since settled_us
local memories, memory_count = {}, 0

local function memory_name(prefix, id)
  return prefix .. '\0' .. (id or '')
end

local function memory_of(prefix, id)
  local name = memory_name(prefix, id)
  local memory = memories[name]
  if not memory then
    if memory_count >= 256 then memories, memory_count = {}, 0 end
    memory = {
      clock = 0, counts = {}, lates = {}, flushed_us = 0, leases = {}, lease_count = 0, late_from = 0, late_to = 0,
      settled = {}, settled_us = 0, settled_count = 0,
    }
    memories[name], memory_count = memory, memory_count + 1
  end
  return memory
end

-- forget_settled: what was true of the queues may not be true any more.
local function forget_settled(memory, now)
  memory.settled, memory.settled_us, memory.settled_count = {}, now, 0
end

-- hand_over: a new record begins with what is remembered under the old one, save the sweep, which begins anew.
local function hand_over(prefix, old_id, new_id)
  local name = memory_name(prefix, old_id)
  local old = memories[name]
  if not old then return end
  memories[name], memories[memory_name(prefix, new_id)] = nil, old
  old.sweep = nil
  forget_settled(old, 0)
end

-- The context of a call, by prefix: made once and filled anew by each call, for making one costs more than most calls do.
local contexts, context_count = {}, 0

local function context_of(prefix)
  local ctx = contexts[prefix]
  if not ctx then
    if context_count >= 256 then contexts, context_count = {}, 0 end
    ctx = {
      prefix = prefix, queues = prefix .. ':queue:', policy_key = prefix .. ':policy', schedule = prefix .. ':schedule',
      level_key = prefix .. ':level', retries = prefix .. ':retries', spread_key = prefix .. ':spread', bucket = {},
    }
    contexts[prefix], context_count = ctx, context_count + 1
  end
  return ctx
end

-- open: everything that one call needs to know before it looks at a bucket. Cost: 2 or 3 calls.
local function open(prefix, now_us)
  local ctx = context_of(prefix)
  local head = call('HMGET', ctx.policy_key, 'id', 'prev_id', 'held')
  local id, now, memory = head[1] or nil, clock(now_us), ctx.memory
  ctx.record = record_of(ctx.policy_key, id, 'record')
  ctx.prev = head[2] and record_of(ctx.policy_key, head[2], 'prev') or nil
  if not memory or ctx.id ~= id then memory = memory_of(prefix, id) end
  if now < memory.clock - STEP_BACK_US then memory.sweep = nil end
  if now - memory.settled_us > SETTLED_US or now < memory.clock then forget_settled(memory, now) end
  memory.clock = now
  ctx.now, ctx.id, ctx.held, ctx.limits, ctx.memory = now, id, head[3] or '', ctx.record.limits, memory
  ctx.rooms, ctx.notes, ctx.bytes, ctx.entries = {}, {}, 0, 0
  ctx.dispatched, ctx.rejected, ctx.latest_us, ctx.looked, ctx.has_levels = 0, 0, 0, 0, nil
  return ctx
end

-- note: something that the daemon should log: an example of each kind, and how many of it this call met.
local function note(ctx, kind, subject, detail)
  local noted = ctx.notes[kind]
  if noted then noted.count = noted.count + 1 return end
  ctx.notes[kind] = { subject = subject, detail = detail or '', count = 1 }
end

-- notes_of: the notes of a call as it replies them: kind, subject, detail, count, and so on.
local function notes_of(ctx)
  local list = {}
  for kind, noted in pairs(ctx.notes) do
    local n = #list
    list[n + 1], list[n + 2], list[n + 3], list[n + 4] = kind, noted.subject, noted.detail, digits(noted.count)
  end
  return list
end

local function count(ctx, counter, n)
  local counts = ctx.memory.counts
  counts[counter] = (counts[counter] or 0) + n
end

-- open_route: make sure that a route's stream and its group exist. Called only inside functions that may run when
-- memory is full, or a full Redis could never be emptied.
local function open_route(prefix, route)
  local made = pcall_redis('XGROUP', 'CREATE', ready_key(prefix, route), 'workers', '0', 'MKSTREAM')
  local err = is_error(made)
  if err and not find(err, 'BUSYGROUP', 1, true) then return err end
  call('SADD', prefix .. ':routes', route)
end

local function names_of(list)
  local names = {}
  for name in gmatch(list, '%S+') do names[#names + 1] = name end
  return names
end

-- drip__policy: replace the record in force. The old one stays beside it until the change has spread (45_sweep).
-- keys   <prefix>:policy
-- args   now_us, id (random), record (JSON), "replace" | "if-missing"
-- reply  1 stored, 0 the one in force is the same (or, with if-missing, one is there), -1 busy: a change still spreads
-- cost   O(routes)
local function policy(keys, args)
  local policy_key, id, json, mode = keys[1], args[2], args[3], args[4]
  local prefix = match(policy_key, '^(.+):policy$')
  local record = decode_record(json or '')
  if not prefix or not record or not id or #id < 8 then return refuse('BADARG', 'policy takes a key, an id and a record') end
  local head = call('HMGET', policy_key, 'id', 'prev_id', 'record', 'held')
  if mode == 'if-missing' and head[1] then return 0 end
  local same = head[3] == json
  if not same and head[2] then return -1 end
  -- checks end here
  local routes = { [record.defaults.route] = true }
  for _, entry in ipairs(record.buckets) do routes[entry.policy.route] = true end
  for route in pairs(routes) do
    local err = open_route(prefix, route)
    if err then return refuse('WRONGTYPE', 'route ' .. route .. ' has no ready stream: ' .. err) end
  end
  if same then return 0 end
  hand_over(prefix, head[1], id)
  call('HSET', policy_key, 'id', id, 'record', json)
  if call('EXISTS', prefix .. ':schedule') == 1 or (head[4] or '') ~= '' then
    call('HSET', policy_key, 'prev_id', head[1] or 'built-in', 'prev', head[3] or built_in_json)
  end
  return 1
end

-- drip__route: make sure that a route's stream and group exist (what `dripd work` calls first).
-- keys   a ready stream
-- args   now_us (not used)
local function route(keys)
  local prefix, name = split_ready(keys[1] or '')
  if not prefix then return refuse('BADARG', 'the key must be <prefix>:ready or <prefix>:ready:<route>') end
  local err = open_route(prefix, name)
  if err then return redis.error_reply(err) end
  return 1
end
