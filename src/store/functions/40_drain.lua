-- Drain: what becomes of the buckets that are due. Retries first, then the queue, as many as the rate and the call allow.
-- This is the path that every job takes: what is not needed for each of them is kept out of it.

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

-- Lateness is counted in quarters of an octave: late:<k> holds those of 2^(k/4) to 2^((k+1)/4) us, less one. Jobs that leave
-- together are about as late as each other, so the borders of the last quarter are remembered.
local quarters, log
at_first_call[#at_first_call + 1] = function() log, quarters = math.log, 4 / math.log(2) end

local function find_quarter(memory, late)
  local k = floor(log(late + 1) * quarters + 1e-9) -- a whole quarter must not come out just below itself
  memory.late_k, memory.late_from, memory.late_to = k, ceil(2 ^ (k / 4) - 1), 2 ^ ((k + 1) / 4) - 1
end

-- deliver: one job into its bucket's ready stream, in return for the due that it met. Replies false when the stream does not
-- take it. The next due follows the one met: lateness up to catch_up is made up, more is not.
local function deliver(ctx, s, r, job, attempt, id)
  local due, p, now = s.due, s.p, ctx.now
  local due_text = s.due_text or format(whole_format, due)
  local added
  if id then
    added = pcall_redis('XADD', r.stream, '*', 'bucket', s.bucket, 'job', job, 'attempt', attempt, 'due_us', due_text,
      'at_us', ctx.now_text, 'lease_ms', p.lease, 'id', id)
  else
    added = pcall_redis('XADD', r.stream, '*', 'bucket', s.bucket, 'job', job, 'attempt', '1', 'due_us', due_text,
      'at_us', ctx.now_text, 'lease_ms', p.lease)
  end
  if added.err then -- a text has no such field
    r.left, r.exact = 0, true
    note(ctx, 'refused', r.stream, added.err)
    return false
  end
  r.left = r.left - 1
  ctx.dispatched, ctx.bytes = ctx.dispatched + 1, ctx.bytes + #job
  local late, memory = now - due, ctx.memory
  if late > ctx.latest_us then ctx.latest_us = late end
  if late < memory.late_from or late >= memory.late_to then find_quarter(memory, late) end
  local lates, k = memory.lates, memory.late_k
  lates[k] = (lates[k] or 0) + 1
  if due < now - p.catch_up_us then due = now - p.catch_up_us end
  if p.part == 0 then s.due = due + p.step else s.due = after(p, due) end
  s.due_text = nil
  return true
end

-- may_dispatch: the route's room, where one more job may leave now; else nil.
local function may_dispatch(ctx, s, quota)
  if quota <= 0 or s.due > ctx.now or ctx.bytes >= MIB then return nil end
  local r = ctx.rooms[s.p.route]
  if not r or r.left <= 0 then
    r = room(ctx, s.p.route)
    if r.left <= 0 then return nil end
  end
  return r
end

-- dispatch_retries: let out jobs whose back-off has ended, a rate slot each, ahead of the queue.
local function dispatch_retries(ctx, s, quota)
  local key = retry_key(ctx, s.bucket)
  while true do
    local r = may_dispatch(ctx, s, quota)
    if not r then break end
    local member = call('ZRANGE', key, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not member then break end
    local _, _, _, attempt, id, at = match(member, RETRY_FORMAT)
    if not at then -- not of our making: nothing that could be tried
      call('XADD', ctx.prefix .. ':dead', '*', 'bucket', s.bucket, 'job', member, 'attempt', '1', 'id', '0-0', 'reason', 'malformed')
      call('ZREM', key, member)
      break
    end
    if not deliver(ctx, s, r, sub(member, at), attempt, id) then break end
    call('ZREM', key, member)
    count(ctx, 'retried', 1)
    quota = quota - 1
  end
  s.retry_ready = index_retries(ctx, s.bucket, true)
  return quota
end

-- turn_away: a job over max_job_bytes goes to the rejected stream when its turn comes, and takes no slot. Replies false when
-- that cannot be recorded.
local function turn_away(ctx, s, job)
  if not reject(ctx, s.bucket, 'too_large', 'job', job) then return false end
  ctx.rejected, ctx.bytes = ctx.rejected + 1, ctx.bytes + #job
  count(ctx, 'too_large', 1)
  return true
end

-- piece_of: how many jobs to take together, at most `most`: no more than are due, nor than would fit the call if each were as
-- large as the largest so far. An estimate, not a permission.
local function piece_of(ctx, s, most, largest)
  local from = max(s.due, ctx.now - s.p.catch_up_us)
  local due = floor((ctx.now - from) / s.p.step) + 1
  return max(1, min(most, due, floor((MIB - ctx.bytes) / largest)))
end

local one = {} -- used again for every piece of one job
local SMALL = 4096 -- bytes of a job that may be copied once more

-- dispatch_queue: let out jobs from the right end of the queue, read in growing pieces. A job is taken from its queue only
-- after it is in a stream: whatever stops or raises in between, none is lost, and one that may not leave is not touched.
local function dispatch_queue(ctx, s, quota)
  local queue, now, limit, piece, largest = s.queue, ctx.now, ctx.limits.max_job_bytes, 1, 1
  local r = may_dispatch(ctx, s, quota)
  while r do
    local n = piece == 1 and 1 or piece_of(ctx, s, min(piece, quota, s.len, r.left), largest)
    local jobs, out = one, 0
    if n == 1 then one[1] = call('LINDEX', queue, '-1') else jobs = call('LRANGE', queue, -n, '-1') end
    for i = n, 1, -1 do
      local job = jobs[i]
      if s.due > now or ctx.bytes >= MIB then break end
      if #job <= limit then
        if not deliver(ctx, s, r, job) then break end
      elseif not turn_away(ctx, s, job) then
        break
      end
      if #job > largest then largest = #job end
      out = out + 1
    end
    one[1] = nil
    -- RPOP is a little less work, but replies the job once more.
    if out == 1 and largest < SMALL then call('RPOP', queue) elseif out > 0 then call('LTRIM', queue, '0', -(out + 1)) end
    s.len, quota, piece = s.len - out, quota - out, min(32, piece * 8)
    if out < n or s.len == 0 then break end
    r = may_dispatch(ctx, s, quota)
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
  if s.len > 0 then left = dispatch_queue(ctx, s, left) end
  if s.level ~= s.stored_level then keep_level(ctx, s) end
  local place = 'keep'
  if s.due <= ctx.now then
    if s.len == 0 and not s.retry_ready then
      place = 'gone'
    elseif room(ctx, s.p.route).left <= 0 then
      hold(ctx, s)
      place = 'held'
    end
  end
  return min(left, quota - 1), place
end

-- remember_settled: note how a visit left a queue, for the echo of what it wrote (47_wake).
local function remember_settled(ctx, s, scheduled)
  local memory = ctx.memory
  if scheduled and s.len > 0 and s.over == 0 and ctx.id then
    if memory.settled_count >= SETTLED_MOST then forget_settled(memory, ctx.now) end
    memory.settled[s.bucket], memory.settled_count = s.len, memory.settled_count + 1
  elseif memory.settled[s.bucket] then
    memory.settled[s.bucket] = nil
  end
end

-- visit_all: visit the buckets of `work`, from where it stands.
local function visit_all(ctx, work)
  local s, names, due, levels, retrying = work.s, work.names, work.due, work.levels, work.retrying
  local head, keep, gone = ctx.queues, work.keep, work.gone
  while work.at < #names do
    if work.quota <= 0 or spent(ctx) then
      work.more = true
      return
    end
    local i = work.at + 1
    work.at = i
    local bucket, due_text = names[i], due[2 * i]
    local queue = head .. bucket
    local len = pcall_redis('LLEN', queue)
    if type(len) ~= 'number' then
      note(ctx, 'wrong-type', queue)
      len = 0
    end
    look(ctx, s, bucket, queue, len, due_text + 0, levels[i])
    work.looked, s.due_text = i, s.due == s.stored_due and due_text or nil
    local given = min(work.quota, work.share)
    local left, place = visit(ctx, s, given, retrying[i])
    work.quota = work.quota - given + left
    remember_settled(ctx, s, place == 'keep')
    if place == 'gone' then
      gone[#gone + 1] = bucket
    elseif place == 'keep' then
      if s.due ~= s.stored_due then
        local n = #keep
        keep[n + 1], keep[n + 2] = format(whole_format, s.due), bucket
      end
      if s.due <= ctx.now then work.more = true end
    end
  end
end

-- drain_due: visit the buckets that are due, the longest due first. One batch of jobs or buckets, in equal shares, and
-- for one bucket no more than a quarter while others are due. The buckets that a wake looked at count too. Replies whether more
-- is due.
local function drain_due(ctx)
  local batch = max(1, ctx.limits.batch - ctx.looked)
  local due = call('ZRANGE', ctx.schedule, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', batch, 'WITHSCORES')
  if #due == 0 then return false end
  local names = {}
  for i = 1, #due, 2 do names[#names + 1] = due[i] end
  local retrying = {}
  if ctx.has_retries then
    for i, at in ipairs(call('ZMSCORE', ctx.retries, unpack(names))) do retrying[i] = at and tonumber(at) == huge end
  end
  local share = #names == 1 and batch or min(ctx.record.quarter, max(1, floor(batch / #names)))
  local work = {
    s = {}, names = names, due = due, levels = levels_of(ctx, names), retrying = retrying, at = 0, quota = batch, share = share,
    looked = 0, keep = {}, gone = {}, more = #names == batch,
  }
  repeat
    local whole, why = pcall(visit_all, ctx, work)
    if not whole then
      -- Before the visit: a key of ours is of the wrong type. (Redis' pcall replies a text; a table keeps its code.)
      if work.looked ~= work.at then error(type(why) == 'table' and why or { err = why }) end
      -- A visit that raises (a key of the wrong type, in the middle of it) costs its bucket an interval and no other bucket
      -- anything: the dues of what has left by then must be stored.
      local s = work.s
      note(ctx, 'raised', s.queue, type(why) == 'table' and why.err or tostring(why))
      work.quota = work.quota - 1
      work.keep[#work.keep + 1] = digits(max(s.due, ctx.now + s.p.interval_us))
      work.keep[#work.keep + 1] = s.bucket
    end
  until whole
  if #work.keep > 0 then call('ZADD', ctx.schedule, unpack(work.keep)) end
  if #work.gone > 0 then call('ZREM', ctx.schedule, unpack(work.gone)) end
  return work.more
end
