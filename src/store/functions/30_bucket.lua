-- Buckets: what is true of one now, and the step that makes it so.
--
-- <prefix>:queue:<bucket>  list   the waiting jobs, newest at the left
-- <prefix>:schedule        zset   bucket -> due
-- <prefix>:held:<route>    zset   bucket -> due, of buckets whose route is full; in neither set: due at once
-- <prefix>:level           hash   bucket -> how many jobs it may keep, of those that hold more than their capacity
-- <prefix>:retry:<bucket>  zset   failed jobs by the end of their back-off
-- <prefix>:retries         zset   bucket -> the first of those ends; +inf once it is over and the bucket is scheduled
-- <prefix>:spread          set    buckets that a spreading change has reached

local function queue_key(ctx, bucket) return ctx.queues .. bucket end
local function retry_key(ctx, bucket) return ctx.prefix .. ':retry:' .. bucket end
local function held_key(ctx, route) return ctx.prefix .. ':held:' .. route end

-- held_due: the due of a bucket that waits for its route, or nil. Cost: a call for each held route.
local function held_due(ctx, bucket)
  if ctx.held == '' then return nil end
  for name in gmatch(ctx.held, '%S+') do
    local due = call('ZSCORE', held_key(ctx, name), bucket)
    if due then return tonumber(due), name end
  end
end

-- look: the state of a bucket, from what was read of it, into s. Writes nothing.
--   len     jobs in the queue that count       over    jobs above the level, to be cut
--   level   as it is to be stored, or nil      due     as it is to be stored, or nil when not scheduled
-- A queue may hold its capacity, or its level where the capacity was lowered under it. Where a change spreads and has
-- not reached this bucket yet, the larger of the old and the new capacity counts, and the due is re-anchored: last
-- dispatch + the new interval. No due lies further ahead than one interval: beyond that, the clock stepped back.
-- The loops give the same s for one bucket after the other: a table for each is most of what a look would cost.
local function look(ctx, s, bucket, queue, len, due, level)
  local p = ctx.record.plain or policy_of(ctx.record, bucket)
  s.bucket, s.queue, s.p, s.stored_level, s.stored_due, s.fresh, s.retry_ready = bucket, queue, p, level, due, false, false
  local keeps = p.capacity
  if level and level > keeps then keeps = level end
  if ctx.prev and call('SISMEMBER', ctx.spread_key, bucket) == 0 then
    local old = policy_of(ctx.prev, bucket)
    s.fresh = true
    keeps = max(keeps, old.capacity)
    if due and (old.period_us ~= p.period_us or old.count ~= p.count) then
      -- No earlier than now, unless it was due before: a faster rate makes up for nothing that was not promised then.
      due = max(after(p, due - old.step), min(due, ctx.now))
    end
  end
  if due and due > ctx.now + p.interval_us then due = ctx.now + p.interval_us end
  s.due, s.over = due, 0
  if len > keeps then s.over, len = len - keeps, keeps end
  s.len, s.level = len, nil
  if len > p.capacity then s.level = len end
  return s
end

-- reject: an entry in the rejected stream: the first 4 KiB of a job, with its size where that is not all of it.
local function reject(ctx, bucket, reason, field, value)
  local keep = ctx.limits.rejected_keep
  local stream = ctx.prefix .. ':rejected'
  local added
  if #value > EXCERPT then
    added = pcall_redis('XADD', stream, 'MAXLEN', keep, '*', 'bucket', bucket, field, sub(value, 1, EXCERPT), 'reason', reason,
      'bytes', #value)
  else
    added = pcall_redis('XADD', stream, 'MAXLEN', keep, '*', 'bucket', bucket, field, value, 'reason', reason)
  end
  if is_error(added) then note(ctx, 'refused', stream, is_error(added)) return false end
  ctx.entries = ctx.entries + 1
  -- 12,000 entries are less than 64 MiB whatever they hold, so only a stream that may have more is measured: every 256
  -- entries, all of it, for what is sampled is its oldest part.
  local entries = ctx.memory.rejected_since or 0
  ctx.memory.rejected_since = entries + 1
  if keep > 12000 and entries % 256 == 0 then
    local bytes = call('MEMORY', 'USAGE', stream, 'SAMPLES', 0)
    if bytes > REJECTED_BYTES then
      call('XTRIM', stream, 'MAXLEN', floor(call('XLEN', stream) * REJECTED_BYTES / bytes))
    end
  end
  return true
end

-- cut: take what is above its level out of a queue, in one LTRIM: the newest, or the oldest with drop-oldest. The
-- `batch` oldest of the cut get an entry each in the rejected stream, the others one entry with their count.
-- Replies false, having changed no queue, when they could not be recorded.
local function cut(ctx, s)
  local queue, over = s.queue, s.over
  local oldest_first = s.p.overflow == 'drop-oldest'
  local reason = oldest_first and 'dropped' or 'full'
  local shown, bytes = 0, 0
  while shown < over and shown < ctx.limits.batch and bytes < CUT_BYTES do
    local n = shown == 0 and 1 or min(16, over - shown, ctx.limits.batch - shown)
    local jobs
    if oldest_first then jobs = call('LRANGE', queue, -(shown + n), -(shown + 1))
    else jobs = call('LRANGE', queue, over - shown - n, over - shown - 1) end
    for i = #jobs, 1, -1 do
      if not reject(ctx, s.bucket, reason, 'job', jobs[i]) then return false end
      bytes = bytes + #jobs[i]
    end
    shown = shown + n
  end
  ctx.bytes = ctx.bytes + bytes
  if shown < over and not reject(ctx, s.bucket, reason, 'count', digits(over - shown)) then return false end
  if oldest_first then call('LTRIM', queue, 0, -(over + 1)) else call('LTRIM', queue, over, -1) end
  ctx.rejected = ctx.rejected + over
  count(ctx, oldest_first and 'dropped' or 'rejected', over)
  s.over = 0
  return true
end

-- spent: whether a call has rejected or read as much as one call may. What is left is for the next one.
local function spent(ctx)
  return ctx.entries >= ctx.limits.batch or ctx.bytes >= MIB
end

-- keep_level: store the level of a bucket where it changed.
local function keep_level(ctx, s)
  if s.level == s.stored_level then return end
  if s.level then
    call('HSET', ctx.level_key, s.bucket, s.level)
    ctx.has_levels = true
  else
    call('HDEL', ctx.level_key, s.bucket)
  end
  s.stored_level = s.level
end

-- settle: make a bucket what `look` said, its due aside. Replies false when its queue could not be cut.
local function settle(ctx, s)
  if s.over == 0 and not s.fresh and s.level == s.stored_level then return true end
  if s.over > 0 and not cut(ctx, s) then return false end
  keep_level(ctx, s)
  if s.fresh then
    call('SADD', ctx.spread_key, s.bucket)
    s.fresh = false
  end
  return true
end

-- store_due: write the due of one bucket where it is kept: among the scheduled, or among the held.
local function store_due(ctx, s, held_by)
  if s.due == s.stored_due then return end
  call('ZADD', held_by and held_key(ctx, held_by) or ctx.schedule, s.due, s.bucket)
end

-- levels_of: the levels of several buckets, in their order; nothing is read where no bucket has one.
local function levels_of(ctx, names)
  local levels = {}
  if ctx.has_levels == nil then ctx.has_levels = call('EXISTS', ctx.level_key) == 1 end
  if #names == 0 or not ctx.has_levels then return levels end
  for from = 1, #names, 1000 do
    local page = call('HMGET', ctx.level_key, unpack(names, from, min(#names, from + 999)))
    for i, level in ipairs(page) do levels[from + i - 1] = tonumber(level or nil) end
  end
  return levels
end
