-- Drain: what becomes of the buckets that are due. Retries first, then the queue, as many as the rate and the call allow.

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
