-- Dispatched jobs: ack, fail, and reap, which does both for workers that fell silent or used XACK.

-- An entry id: <ms>-<seq> or <ms>, each at most 2^64 - 1. Replies it in full, or nil.
local function entry_id(text)
  local ms, seq = match(text, '^([0-9]+)%-([0-9]+)$')
  if not ms then ms, seq = match(text, '^([0-9]+)$'), '0' end
  if not ms then return nil end
  local function fits(n) return #n < 20 or (#n == 20 and n <= '18446744073709551615') end
  if fits(ms) and fits(seq) then return ms .. '-' .. seq end
end

local function bad_ready_key()
  return refuse('BADARG', 'one key is needed: <prefix>:ready or <prefix>:ready:<route>')
end

-- drip_ack: jobs are done: acknowledge and delete their entries.
-- keys   a ready stream
-- args   id [id ...] (1 to 1,000)
-- reply  how many were pending; an id that was not is left alone
-- errors BADARG TOOMANY WRONGTYPE; nothing is changed
-- cost   O(ids)
local function ack(keys, ids)
  if #keys ~= 1 or not split_ready(keys[1]) then return bad_ready_key() end
  if #ids == 0 then return refuse('BADARG', 'no entry id given') end
  if #ids > 1000 then return refuse('TOOMANY', 'at most 1000 ids a call') end
  local full = {}
  for i, id in ipairs(ids) do
    full[i] = entry_id(id)
    if not full[i] then return refuse('BADARG', 'argument ' .. i .. ' is no entry id: write <ms>-<seq>') end
  end
  if is_error(pcall_redis('XLEN', keys[1])) then return refuse('WRONGTYPE', 'the key holds something else than a stream') end
  -- checks end here
  local done = {}
  for _, id in ipairs(full) do
    if call('XACK', keys[1], 'workers', id) == 1 then done[#done + 1] = id end
  end
  if #done > 0 then call('XDEL', keys[1], unpack(done)) end
  return #done
end

-- read_entry: the fields of an entry, as a table and as the list they are; nil when it is gone.
local function read_entry(stream, id)
  local found = call('XRANGE', stream, id, id)[1]
  if not found then return nil end
  local fields = {}
  for i = 1, #found[2], 2 do fields[found[2][i]] = found[2][i + 1] end
  return fields, found[2]
end

-- well_formed: whether an entry is a job that can go back into a bucket.
local function well_formed(fields)
  return fields.job and fields.bucket and valid_name(fields.bucket) and (not fields.attempt or whole(fields.attempt))
    and (not fields.id or entry_id(fields.id))
end

local function finish(stream, id)
  call('XACK', stream, 'workers', id)
  call('XDEL', stream, id)
end

-- bury: put a job into the dead stream and finish its entry. What a malformed entry held goes with it.
local function bury(ctx, stream, id, fields, list, reason)
  local entry = {
    'bucket', fields.bucket or '', 'job', fields.job or '', 'attempt', fields.attempt or '1', 'id', fields.id or id,
    'reason', reason,
  }
  if reason == 'malformed' then
    for i = 1, min(#list, 2000), 2 do
      local field = list[i]
      if field ~= 'bucket' and field ~= 'job' and field ~= 'attempt' and field ~= 'id' and field ~= 'reason' then
        entry[#entry + 1] = field
        entry[#entry + 1] = list[i + 1]
      end
    end
  end
  local added = pcall_redis('XADD', ctx.prefix .. ':dead', '*', unpack(entry))
  if is_error(added) then return refuse('WRONGTYPE', ctx.prefix .. ':dead does not take the job: ' .. is_error(added)) end
  finish(stream, id)
  count(ctx, 'dead', 1)
  return 2
end

-- backoff_us: the wait before try k + 1: initial * 2^(k - 1), at most max, no jitter.
local function backoff_us(p, attempt)
  return min(p.backoff_max_us, p.backoff_initial_us * 2 ^ (attempt - 1))
end

-- take_back: a pending job failed: it goes into its bucket's retry set, or to the dead. Replies 1 or 2, or an error
-- having changed nothing.
local function take_back(ctx, stream, route_name, id, fields, list, how)
  if not well_formed(fields) then return bury(ctx, stream, id, fields, list, 'malformed') end
  local bucket, attempt = fields.bucket, whole(fields.attempt or '1')
  local p = policy_of(ctx.record, bucket)
  if how.dead or (not how.keep and attempt >= p.attempts) then return bury(ctx, stream, id, fields, list, how.reason) end
  local delay_us = how.delay_us or backoff_us(p, attempt)
  local ends = ctx.now + delay_us
  local member = table.concat({ id, route_name, digits(delay_us), digits(how.keep and attempt or attempt + 1), fields.id or id,
    fields.job }, ' ')
  local first = pcall_redis('ZSCORE', ctx.retries, bucket)
  local added = is_error(first) and first or pcall_redis('ZADD', retry_key(ctx, bucket), ends, member)
  if is_error(added) then return refuse('WRONGTYPE', 'a retry set holds something else than a sorted set') end
  if not first or tonumber(first) > ends and tonumber(first) ~= huge then call('ZADD', ctx.retries, ends, bucket) end
  finish(stream, id)
  count(ctx, 'failed', 1)
  return 1
end

-- drip_fail: a job failed, or is given back.
-- keys   a ready stream
-- args   id [RETRY_IN ms] [KEEP] [DEAD] [REASON text]
-- reply  1 it will be retried, 2 it is dead, 0 it was not pending any more and nothing changed
-- errors BADARG WRONGTYPE; nothing is changed
-- cost   O(log n)
local function fail(keys, args, now_us)
  local prefix, route_name
  if #keys == 1 then prefix, route_name = split_ready(keys[1]) end
  if not prefix then return bad_ready_key() end
  local id = entry_id(args[1] or '')
  if not id then return refuse('BADARG', 'the first argument must be an entry id: <ms>-<seq>') end
  local how, i = { reason = 'failed' }, 2
  while i <= #args do
    local option = string.upper(args[i])
    if option == 'KEEP' then how.keep = true
    elseif option == 'DEAD' then how.dead = true
    elseif option == 'REASON' then
      i = i + 1
      if not args[i] then return refuse('BADARG', 'REASON needs a text') end
      how.reason = sub(args[i], 1, 1000)
    elseif option == 'RETRY_IN' then
      i = i + 1
      local ms = whole(args[i])
      if not ms or ms > DELAY_MAX_MS then
        return refuse('BADARG', 'RETRY_IN needs whole milliseconds, 0 to ' .. digits(DELAY_MAX_MS))
      end
      how.delay_us = ms * 1000
    else
      return refuse('BADARG', 'argument ' .. i .. ' is none of RETRY_IN ms, KEEP, DEAD, REASON text')
    end
    i = i + 1
  end
  local ctx = open(prefix, now_us)
  local stream = keys[1]
  local pending = pcall_redis('XPENDING', stream, 'workers', id, id, 1)
  local err = is_error(pending)
  if err and find(err, 'NOGROUP', 1, true) then return 0 end
  if err then return refuse('WRONGTYPE', 'the key holds something else than a stream') end
  if #pending == 0 then return 0 end
  local fields, list = read_entry(stream, id)
  if not fields then return 0 end
  return take_back(ctx, stream, route_name, id, fields, list, how)
end

-- lease_of: how long a pending entry may stay, in ms: 0 for one that is no job, nil for one that is gone. Remembered,
-- so that a long job is read once and not in every pass.
local function lease_of(ctx, stream, id)
  local memory, name = ctx.memory, stream .. ' ' .. id
  local lease = memory.leases[name]
  if lease then return lease end
  local fields = read_entry(stream, id)
  if not fields then return nil end
  ctx.bytes = ctx.bytes + #(fields.job or '')
  lease = 0
  if well_formed(fields) then lease = whole(fields.lease_ms or '') or policy_of(ctx.record, fields.bucket).lease_ms end
  if memory.lease_count >= 10000 then memory.leases, memory.lease_count = {}, 0 end
  memory.leases[name], memory.lease_count = lease, memory.lease_count + 1
  return lease
end

-- expire: take back a pending entry whose lease ran out. `left` in the pass is the shortest lease still running.
local function expire(ctx, pass, stream, route_name, id, idle_ms)
  if not pass.takes_back then return end
  if idle_ms < LEASE_MIN_MS then
    pass.left_ms = min(pass.left_ms, LEASE_MIN_MS - idle_ms)
    return
  end
  local lease = lease_of(ctx, stream, id)
  if not lease then
    call('XACK', stream, 'workers', id) -- deleted by somebody while it was pending: there is nothing to take back
    note(ctx, 'vanished', id)
  elseif idle_ms < lease then
    pass.left_ms = min(pass.left_ms, lease - idle_ms)
  else
    local fields, list = read_entry(stream, id)
    if not fields then -- its lease was remembered, but the entry is gone
      call('XACK', stream, 'workers', id)
      return note(ctx, 'vanished', id)
    end
    ctx.bytes = ctx.bytes + #(fields.job or '')
    local outcome = take_back(ctx, stream, route_name, id, fields, list, { reason = 'lease expired' })
    if is_error(outcome) then note(ctx, 'refused', stream, is_error(outcome)) return end
    pass.taken_back = pass.taken_back + 1
    count(ctx, 'lease_expired', 1)
  end
end

-- remove_between: delete the entries after `from` and before `to` (both as XRANGE reads them), all of them finished.
-- Replies false when the call has done enough and some are left.
local function remove_between(ctx, pass, stream, from, to)
  while true do
    if ctx.bytes >= MIB or pass.removed >= 1000 then return false end
    local page, ids = call('XRANGE', stream, from, to, 'COUNT', 16), {}
    for i, entry in ipairs(page) do
      ids[i] = entry[1]
      for j = 2, #entry[2], 2 do ctx.bytes = ctx.bytes + #entry[2][j] end
    end
    if #ids > 0 then call('XDEL', stream, unpack(ids)) end
    pass.removed = pass.removed + #ids
    if #ids < 16 then return true end
  end
end

-- trim_front: delete what is before `id`; whole nodes first, a bounded number of them. Replies false when more is left.
local function trim_front(pass, stream, id)
  local n = call('XTRIM', stream, 'MINID', '~', id, 'LIMIT', 1000)
  pass.removed = pass.removed + n
  if n >= 900 then return false end
  pass.removed = pass.removed + call('XTRIM', stream, 'MINID', '=', id)
  return true
end

-- reap_route: one page of a route, from the pending entry after `from` ('' = the beginning). Replies where to go on, or
-- nil when the route is done. An entry is finished when it was delivered and is not pending; those behind a pending one
-- are looked for only where the stream is longer than what is pending and undelivered.
local function reap_route(ctx, pass, name, from)
  local stream = ready_key(ctx.prefix, name)
  local length = pcall_redis('XLEN', stream)
  if is_error(length) then note(ctx, 'wrong-type', stream) return nil end
  pass.live = pass.live + length
  if length == 0 then
    if not pass.named[name] then call('SREM', ctx.prefix .. ':routes', name) end
    return nil
  end
  local group = workers_group(stream)
  if not group then open_route(ctx.prefix, name) return nil end
  local delivered, most = group['last-delivered-id'], ctx.limits.batch
  local rows = call('XPENDING', stream, 'workers', from == '' and '-' or '(' .. from, '+', most)
  if from == '' then
    if not trim_front(pass, stream, rows[1] and rows[1][1] or delivered) then return '' end
    if not rows[1] then
      pass.removed = pass.removed + call('XDEL', stream, delivered)
      return nil
    end
  end
  -- Entries that were deleted undelivered still count in the lag, so it alone may hide finished ones: some passes walk
  -- through them whatever it says.
  local undelivered_now = group.lag
  if group.lag and #call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1) == 0 then undelivered_now = 0 end
  local behind = not undelivered_now or call('XLEN', stream) > group.pending + undelivered_now or pass.thorough
  local last = from
  for _, row in ipairs(rows) do
    if behind and last ~= '' and not remove_between(ctx, pass, stream, '(' .. last, '(' .. row[1]) then return last end
    last = row[1]
    expire(ctx, pass, stream, name, row[1], row[3] + pass.ahead_ms)
    if ctx.bytes >= MIB then return last end
  end
  if #rows == most then return last end
  if behind and last ~= '' and not remove_between(ctx, pass, stream, '(' .. last, delivered) then return last end
  return nil
end

-- drip__reap: a part of a pass over the dispatched jobs: take back those whose lease ran out, delete those that are
-- finished. A pass is over when the route replied is empty.
-- keys   <prefix>:policy
-- args   now_us, "1" to take back | "0" to delete only, route and entry id to go on from ('' '' = a new pass)
-- reply  { route, id, left_ms (until the next lease may end, -1 = none), taken_back, removed, live (entries seen),
--          dead (length of the dead stream), notes }
-- cost   O(batch)
local function reap(keys, args)
  local prefix = match(keys[1] or '', '^(.+):policy$')
  if not prefix then return refuse('BADARG', 'reap takes the policy key') end
  local ctx = open(prefix, args[1])
  local pass = { left_ms = huge, taken_back = 0, removed = 0, live = 0, ahead_ms = 0, named = {}, takes_back = args[2] == '1' }
  if (args[3] or '') == '' then ctx.memory.passes = (ctx.memory.passes or 0) + 1 end
  pass.thorough = (ctx.memory.passes or 0) % 5 == 0
  if args[1] ~= '' then pass.ahead_ms = floor((ctx.now - clock('')) / 1000) end
  pass.named[ctx.record.defaults.route] = true
  for _, entry in ipairs(ctx.record.buckets) do pass.named[entry.policy.route] = true end
  local names = call('SMEMBERS', prefix .. ':routes')
  table.sort(names)
  local at, from = '', args[4] or ''
  for i, name in ipairs(names) do
    if name >= (args[3] or '') then
      from = reap_route(ctx, pass, name, name == args[3] and from or '')
      if from then at = name break end
      if pass.removed >= 1000 or ctx.bytes >= MIB then at, from = names[i + 1] or '', '' break end
    end
  end
  local dead = pcall_redis('XLEN', prefix .. ':dead')
  return {
    at, from or '', pass.left_ms == huge and -1 or pass.left_ms, pass.taken_back, pass.removed, pass.live,
    is_error(dead) and 0 or dead, notes_of(ctx),
  }
end
