-- Drain: let out what is due, and say how long the rest must wait. Wake: the same, after a look at queues that changed.

-- workers_group: what Redis says of the group of a stream, or nil where it is missing.
local function workers_group(stream)
  for _, list in ipairs(call('XINFO', 'GROUPS', stream)) do
    local group = {}
    for i = 1, #list, 2 do group[list[i]] = list[i + 1] end
    if group.name == 'workers' then return group end
  end
end

-- undelivered: how many entries of a ready stream no worker has read yet. Redis knows it as the group's lag, except
-- after the newest delivered entry was deleted; and 7.0.15 goes on counting undelivered entries that were deleted. So
-- never more than what is there and not pending.
local function undelivered(stream, length)
  local group = workers_group(stream)
  if not group then return length end
  return min(group.lag or huge, max(0, length - group.pending))
end

-- room: how many more jobs a route takes now. The length of its stream is a cheap upper bound of what is undelivered,
-- so the group is asked only where that is not enough, or where the answer must be exact.
local function room(ctx, name, exact)
  local r = ctx.rooms[name]
  if not r then
    r = { stream = ready_key(ctx.prefix, name), left = 0 }
    ctx.rooms[name] = r
    local length = pcall_redis('XLEN', r.stream)
    local err = is_error(length)
    if not err and length == 0 and call('EXISTS', r.stream) == 0 then err = open_route(ctx.prefix, name) end
    if err then
      r.exact = true
      note(ctx, 'wrong type', r.stream)
    else
      r.left = ctx.limits.max_ready - length
    end
  end
  if (r.left <= 0 or exact) and not r.exact then
    r.exact = true
    r.left = ctx.limits.max_ready - undelivered(r.stream, call('XLEN', r.stream))
  end
  return r
end

local function set_held(ctx, held)
  ctx.held = held
  if held == '' then call('HDEL', ctx.policy_key, 'held') else call('HSET', ctx.policy_key, 'held', held) end
end

-- hold: take a bucket whose route is full off the schedule, its due kept.
local function hold(ctx, s)
  local name = s.p.route
  call('ZADD', held_key(ctx, name), s.due, s.bucket)
  call('ZREM', ctx.schedule, s.bucket)
  if not find(' ' .. ctx.held .. ' ', ' ' .. name .. ' ', 1, true) then
    set_held(ctx, ctx.held == '' and name or ctx.held .. ' ' .. name)
  end
end

-- release: put up to `most` buckets of a held route back on the schedule, the earliest due first. They go on at their
-- rate: what they missed is lost to the catch-up bound. Replies whether none is left.
local function release(ctx, name, most)
  local held = held_key(ctx, name)
  local back = call('ZRANGE', held, 0, most - 1, 'WITHSCORES')
  if #back > 0 then
    local add, gone = {}, {}
    for i = 1, #back, 2 do
      add[i], add[i + 1] = back[i + 1], back[i]
      gone[#gone + 1] = back[i]
    end
    call('ZADD', ctx.schedule, unpack(add))
    call('ZREM', held, unpack(gone))
  end
  if call('EXISTS', held) == 1 then return false end
  local others = {}
  for other in gmatch(ctx.held, '%S+') do
    if other ~= name then others[#others + 1] = other end
  end
  set_held(ctx, table.concat(others, ' '))
  return true
end

local function release_where_room(ctx)
  for _, name in ipairs(names_of(ctx.held)) do
    local left = room(ctx, name, true).left
    if left > 0 or call('EXISTS', held_key(ctx, name)) == 0 then
      release(ctx, name, max(1, min(left, ctx.limits.batch)))
    end
  end
end

-- announce: put the buckets of back-offs that ended on the schedule.
local function announce(ctx)
  local ended = call('ZRANGE', ctx.retries, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', 0, ctx.limits.batch)
  for _, bucket in ipairs(ended) do
    call('ZADD', ctx.retries, '+inf', bucket)
    if not call('ZSCORE', ctx.schedule, bucket) and not held_due(ctx, bucket) then
      call('ZADD', ctx.schedule, ctx.now_text, bucket)
    end
  end
end

-- index_retries: store when the first back-off of a bucket ends, or, where `announced`, leave one that has ended as it
-- is. Replies whether one has ended.
local function index_retries(ctx, bucket, announced)
  local first = call('ZRANGE', retry_key(ctx, bucket), 0, 0, 'WITHSCORES')
  if not first[1] then
    call('ZREM', ctx.retries, bucket)
    return false
  end
  local ended = tonumber(first[2]) <= ctx.now
  if not (ended and announced) then call('ZADD', ctx.retries, first[2], bucket) end
  return ended
end

-- A failed job in its bucket's retry set: its header, a space, the job. The entry that failed makes it unique.
local RETRY_FORMAT = '^(%S+) (%S+) (%d+) (%d+) (%S+) ()'

local quarters, log
at_first_call[#at_first_call + 1] = function() log, quarters = math.log, 4 / math.log(2) end

-- deliver: one job into its bucket's ready stream. Replies false when the stream does not take it.
local function deliver(ctx, s, due, job, attempt, id)
  local r = ctx.rooms[s.p.route]
  local added
  if id then
    added = pcall_redis('XADD', r.stream, '*', 'bucket', s.bucket, 'job', job, 'attempt', attempt, 'due_us', digits(due),
      'at_us', ctx.now_text, 'lease_ms', s.p.lease, 'id', id)
  else
    added = pcall_redis('XADD', r.stream, '*', 'bucket', s.bucket, 'job', job, 'attempt', '1', 'due_us', digits(due),
      'at_us', ctx.now_text, 'lease_ms', s.p.lease)
  end
  if is_error(added) then
    r.left, r.exact = 0, true
    note(ctx, is_error(added), r.stream)
    return false
  end
  r.left = r.left - 1
  ctx.dispatched = ctx.dispatched + 1
  ctx.bytes = ctx.bytes + #job
  local late = ctx.now - due
  if late > ctx.latest_us then ctx.latest_us = late end
  -- Lateness is counted in quarters of an octave: late:<k> holds those of 2^(k/4) to 2^((k+1)/4) us, less one.
  local lates, k = ctx.memory.lates, floor(log(late + 1) * quarters)
  lates[k] = (lates[k] or 0) + 1
  return true
end

-- next_due: what follows a dispatch now that met `due`: lateness up to catch_up is made up, more is not.
local function next_due(ctx, p, due)
  return after(p, max(due, ctx.now - p.catch_up_us))
end

local function may_dispatch(ctx, s, quota)
  return quota > 0 and s.due <= ctx.now and ctx.bytes < MIB and room(ctx, s.p.route).left > 0
end

-- dispatch_retries: let out jobs whose back-off has ended, a rate slot each, ahead of the queue.
local function dispatch_retries(ctx, s, quota)
  local key = retry_key(ctx, s.bucket)
  while may_dispatch(ctx, s, quota) do
    local member = call('ZRANGE', key, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not member then break end
    local _, _, _, attempt, id, at = match(member, RETRY_FORMAT)
    if not at then -- not of our making: nothing that could be tried
      call('XADD', ctx.prefix .. ':dead', '*', 'bucket', s.bucket, 'job', member, 'attempt', '1', 'id', '0-0', 'reason', 'malformed')
      call('ZREM', key, member)
      break
    end
    if not deliver(ctx, s, s.due, sub(member, at), attempt, id) then break end
    call('ZREM', key, member)
    count(ctx, 'retried', 1)
    s.due = next_due(ctx, s.p, s.due)
    quota = quota - 1
  end
  s.retry_ready = index_retries(ctx, s.bucket, true)
  return quota
end

-- slots: how many jobs of a bucket are due by now, at most `most`; an estimate of how many to read, not a permission.
local function slots(ctx, s, most)
  local from = max(s.due, ctx.now - s.p.catch_up_us)
  return max(1, min(most, floor((ctx.now - from) / s.p.step) + 1))
end

-- dispatch_queue: let out jobs from the right end of the queue; a job over max_job_bytes goes to the rejected stream
-- when its turn comes, and takes no slot. Jobs are read in growing pieces, no more of them than would fit the call if
-- each were as large as the largest so far.
local function dispatch_queue(ctx, s, quota)
  local queue, limit, piece, largest = queue_key(ctx, s.bucket), ctx.limits.max_job_bytes, 1, 1
  local stopped = false
  while not stopped and s.len > 0 and may_dispatch(ctx, s, quota) do
    local n = min(piece, quota, s.len, slots(ctx, s, quota), max(1, floor((MIB - ctx.bytes) / largest)))
    piece = min(32, piece * 8)
    local jobs = n == 1 and { call('LINDEX', queue, -1) } or call('LRANGE', queue, -n, -1)
    local taken = 0
    for i = #jobs, 1, -1 do
      local job = jobs[i]
      largest = max(largest, #job)
      if not may_dispatch(ctx, s, quota) then stopped = true break end
      if #job > limit then
        if not reject(ctx, s.bucket, 'too_large', 'job', job) then stopped = true break end
        ctx.rejected, ctx.bytes = ctx.rejected + 1, ctx.bytes + #job
        count(ctx, 'too_large', 1)
      else
        if not deliver(ctx, s, s.due, job) then stopped = true break end
        s.due = next_due(ctx, s.p, s.due)
      end
      taken, quota = taken + 1, quota - 1
    end
    if taken > 0 then
      call('LTRIM', queue, 0, -(taken + 1))
      s.len = s.len - taken
    end
  end
  s.level = s.len > s.p.capacity and s.len or nil
  return quota
end

-- visit: one due bucket. Replies what is left of the batch, and what becomes of its place in the schedule:
-- 'keep' (with s.due), 'held', or 'gone' (empty and past its due: nothing of it stays).
local function visit(ctx, s, quota, retrying)
  if not settle(ctx, s) then
    s.due = ctx.now + s.p.interval_us -- the others go on
    return quota - 1, 'keep'
  end
  local left = quota
  if retrying then left = dispatch_retries(ctx, s, left) end
  left = dispatch_queue(ctx, s, left)
  keep_level(ctx, s)
  local place = 'keep'
  if s.due <= ctx.now then
    if s.len == 0 and not s.retry_ready then
      place = 'gone'
    elseif room(ctx, s.p.route).left <= 0 then
      hold(ctx, s)
      place = 'held'
    end
  end
  return max(0, min(left, quota - 1)), place
end

-- try_visit: a visit that raises (a key of the wrong type, in the middle of it) costs its bucket an interval and no other
-- bucket anything: the dues of what has left by then must be stored.
local function try_visit(ctx, s, quota, retrying)
  local ok, left, place = pcall(visit, ctx, s, quota, retrying)
  if ok then return left, place end
  note(ctx, type(left) == 'table' and left.err or tostring(left), queue_key(ctx, s.bucket))
  s.due = max(s.due, ctx.now + s.p.interval_us)
  return quota - 1, 'keep'
end

-- drain_due: visit the buckets that are due, the longest due first. One batch of jobs or buckets, in equal shares, and
-- for one bucket no more than a quarter while others are due. Replies whether more is due.
local function drain_due(ctx)
  local batch = ctx.limits.batch
  local due = call('ZRANGE', ctx.schedule, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', 0, batch, 'WITHSCORES')
  if #due == 0 then return false end
  local names = {}
  for i = 1, #due, 2 do names[#names + 1] = due[i] end
  local levels = levels_of(ctx, names)
  local retrying = {}
  if call('EXISTS', ctx.retries) == 1 then
    for i, at in ipairs(call('ZMSCORE', ctx.retries, unpack(names))) do retrying[i] = at and tonumber(at) == huge end
  end
  local share = #names == 1 and batch or min(ctx.record.quarter, max(1, floor(batch / #names)))
  local quota, keep, gone, more = batch, {}, {}, false
  for i, bucket in ipairs(names) do
    if quota <= 0 or spent(ctx) then more = true break end
    local len = pcall_redis('LLEN', queue_key(ctx, bucket))
    if is_error(len) then
      note(ctx, 'wrong type', queue_key(ctx, bucket))
      len = 0
    end
    local s = look(ctx, bucket, len, tonumber(due[2 * i]), levels[i])
    local given = min(quota, share)
    local left, place = try_visit(ctx, s, given, retrying[i])
    quota = quota - (given - left)
    if place == 'gone' then
      gone[#gone + 1] = bucket
    elseif place == 'keep' then
      if s.due ~= s.stored_due then
        keep[#keep + 1] = digits(s.due)
        keep[#keep + 1] = bucket
      end
      if s.due <= ctx.now then more = true end
    end
  end
  if #keep > 0 then call('ZADD', ctx.schedule, unpack(keep)) end
  if #gone > 0 then call('ZREM', ctx.schedule, unpack(gone)) end
  return more or #names == batch
end

-- The sweep: one pass over every scheduled bucket and every waiting retry, a batch a drain. It carries a change of
-- policy to all of them, and it finds what lies too far ahead after the clock stepped back. It starts when a record is
-- new, when the clock went back, and at the first drain after the server or the library started; where it stands is
-- kept in memory only, and it begins anew when that is lost.
--
-- sweep_page: a page of the schedule, or of the buckets held by a route. A held bucket whose policy names another route
-- now, or which is not due any more, goes back on the schedule. Replies whether it was the last page.
local function sweep_page(ctx, at, key, route_name)
  local page = call('ZSCAN', key, at.cursor, 'COUNT', ctx.limits.batch)
  local names, dues, changed = {}, {}, {}
  for i = 1, #page[2], 2 do
    names[#names + 1] = page[2][i]
    dues[#dues + 1] = tonumber(page[2][i + 1])
  end
  local levels = ctx.prev and levels_of(ctx, names) or {}
  local whole_page = true
  for i, bucket in ipairs(names) do
    if spent(ctx) then whole_page = false break end -- the same page again: those done by now are marked as reached
    local len = 0
    if ctx.prev then
      len = pcall_redis('LLEN', queue_key(ctx, bucket))
      if is_error(len) then len = 0 end
    end
    local s = look(ctx, bucket, len, dues[i], levels[i])
    if ctx.prev and not settle(ctx, s) then s.due = s.stored_due end
    if route_name and (s.p.route ~= route_name or s.due > ctx.now) then
      call('ZREM', key, bucket)
      call('ZADD', ctx.schedule, s.due, bucket)
    elseif s.due ~= s.stored_due then
      changed[#changed + 1] = s.due
      changed[#changed + 1] = bucket
    end
  end
  for i = 1, #changed, 2000 do
    call('ZADD', key, unpack(changed, i, min(#changed, i + 1999)))
  end
  if not whole_page then return false end
  at.cursor = page[1]
  return page[1] == '0'
end

-- The held routes are taken by name, each swept once: at.routes is what is left of them.
local function sweep_held(ctx, at)
  at.routes = at.routes or names_of(ctx.held)
  local name = at.routes[1]
  if not name then return true end
  if sweep_page(ctx, at, held_key(ctx, name), name) then
    table.remove(at.routes, 1)
    at.cursor = '0'
  end
  return at.routes[1] == nil
end

-- A back-off may not lie further ahead than its own length.
local function sweep_retries(ctx, at)
  if not at.bucket then
    if #at.waiting == 0 then
      if at.last then return true end
      local page = call('ZSCAN', ctx.retries, at.cursor, 'COUNT', ctx.limits.batch)
      for i = 1, #page[2], 2 do at.waiting[#at.waiting + 1] = page[2][i] end
      at.cursor, at.last = page[1], page[1] == '0'
      return #at.waiting == 0 and at.last
    end
    at.bucket, at.inner = table.remove(at.waiting), '0'
  end
  local key = retry_key(ctx, at.bucket)
  local page = call('ZSCAN', key, at.inner, 'COUNT', ctx.limits.batch)
  local changed = false
  for i = 1, #page[2], 2 do
    local member, ends = page[2][i], tonumber(page[2][i + 1])
    local _, _, delay_us = match(member, RETRY_FORMAT)
    local latest = ctx.now + (tonumber(delay_us) or 0)
    if ends > latest then
      call('ZADD', key, latest, member)
      changed = true
    end
  end
  if changed and tonumber(call('ZSCORE', ctx.retries, at.bucket) or nil) ~= huge then
    index_retries(ctx, at.bucket, false)
  end
  at.inner = page[1]
  if page[1] == '0' then at.bucket = nil end
  return false
end

-- sweep: the next slice. Replies whether there is more to do.
local function sweep(ctx)
  local memory = ctx.memory
  if not memory.sweep then memory.sweep = { phase = 'held', cursor = '0', waiting = {} } end
  local at = memory.sweep
  if at.phase == 'done' and ctx.prev then at.phase, at.cursor = 'held', '0' end
  if at.phase == 'held' then
    if sweep_held(ctx, at) then at.phase, at.cursor, at.routes = 'schedule', '0', nil end
  elseif at.phase == 'schedule' then
    if sweep_page(ctx, at, ctx.schedule) then
      if ctx.prev then
        call('HDEL', ctx.policy_key, 'prev', 'prev_id')
        call('UNLINK', ctx.spread_key)
        ctx.prev = nil
      end
      at.phase, at.cursor, at.last = 'retries', '0', false
    end
  elseif at.phase == 'retries' then
    if sweep_retries(ctx, at) then at.phase = 'done' end
  end
  return at.phase ~= 'done'
end

-- flush_counts: write the counters of the last second to <prefix>:stats.
local function flush_counts(ctx)
  local memory = ctx.memory
  if ctx.dispatched > 0 then count(ctx, 'dispatched', ctx.dispatched) end
  if next(memory.counts) == nil or ctx.now - memory.flushed_us < 1000000 and ctx.now >= memory.flushed_us then return end
  for counter, n in pairs(memory.counts) do call('HINCRBY', ctx.prefix .. ':stats', counter, n) end
  for k, n in pairs(memory.lates) do call('HINCRBY', ctx.prefix .. ':stats', 'late:' .. k, n) end
  memory.counts, memory.lates, memory.flushed_us = {}, {}, ctx.now
end

-- wait: how long until something is due: 0 = now, -1 = nothing waits.
local function wait_us(ctx, more)
  if more then return 0 end
  local at = huge
  local first = call('ZRANGE', ctx.schedule, 0, 0, 'WITHSCORES')
  if first[2] then at = tonumber(first[2]) end
  local retry = call('ZRANGE', ctx.retries, 0, 0, 'WITHSCORES')
  if retry[2] then at = min(at, tonumber(retry[2])) end
  if ctx.held ~= '' then at = min(at, ctx.now + HOLD_POLL_US) end
  if next(ctx.memory.counts) then at = min(at, max(ctx.memory.flushed_us + 1000000, ctx.now)) end
  if at == huge then return -1 end
  return max(0, at - ctx.now)
end

local function drained(ctx)
  if ctx.held ~= '' then release_where_room(ctx) end
  if call('EXISTS', ctx.retries) == 1 then announce(ctx) end
  local more = drain_due(ctx)
  local sweeping = sweep(ctx)
  flush_counts(ctx)
  return {
    wait_us(ctx, more or sweeping), ctx.dispatched, ctx.rejected, ctx.latest_us, ctx.id and 1 or 0, ctx.prev and 1 or 0,
    ctx.notes,
  }
end

-- drip__drain: let out what is due.
-- keys   <prefix>:schedule
-- args   now_us
-- reply  { wait_us (0 = call again, -1 = nothing waits), dispatched, rejected, latest_us (the latest of this call),
--          record (0 = none is stored), spreading, notes { what, subject, ... } }
-- cost   O(batch)
local function drain(keys, args)
  local prefix = match(keys[1] or '', '^(.+):schedule$')
  if not prefix then return refuse('BADARG', 'drain takes the schedule key') end
  return drained(open(prefix, args[1]))
end

-- drip__wake: look at queues that changed: cut what is over, schedule what is not scheduled, and write nothing
-- otherwise; then drain.
-- keys   <prefix>:queue:<bucket> ... (of one prefix, at most 1,000)
-- args   now_us
-- reply  as drain; an eighth number says how many of the queues were looked at: the rest is for the next call
-- cost   O(queues + batch)
local function wake(keys, args)
  local prefix = split_queue(keys[1] or '')
  if not prefix or #keys > 1000 then return refuse('BADARG', 'wake takes 1 to 1000 queue keys') end
  local ctx = open(prefix, args[1])
  local names, at = {}, {}
  for i, key in ipairs(keys) do
    local _, bucket = split_queue(key)
    if bucket and valid_name(bucket) then
      names[#names + 1] = bucket
      at[#names] = i
    else
      note(ctx, 'bad name', key)
    end
  end
  local looked = #keys
  if #names > 0 then
    local dues, levels, add = call('ZMSCORE', ctx.schedule, unpack(names)), levels_of(ctx, names), {}
    for i, bucket in ipairs(names) do
      if spent(ctx) then looked = at[i] - 1 break end
      local len = pcall_redis('LLEN', queue_key(ctx, bucket))
      if is_error(len) then
        note(ctx, 'wrong type', queue_key(ctx, bucket))
      elseif len > 0 then
        local due, held_by = tonumber(dues[i] or nil), nil
        if not due then due, held_by = held_due(ctx, bucket) end
        local s = look(ctx, bucket, len, due, levels[i])
        settle(ctx, s)
        s.due = s.due or ctx.now
        if held_by then
          store_due(ctx, s, held_by)
        elseif s.due ~= s.stored_due then
          add[#add + 1] = s.due
          add[#add + 1] = bucket
        end
      end
    end
    if #add > 0 then call('ZADD', ctx.schedule, unpack(add)) end
  end
  local reply = drained(ctx)
  reply[8] = looked
  return reply
end
