-- The two calls of the pacer: drain lets out what is due and says how long the rest must wait; wake does the same after a
-- look at queues that changed.

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
  local retry = ctx.has_retries and call('ZRANGE', ctx.retries, 0, 0, 'WITHSCORES') or {}
  if retry[2] then at = min(at, tonumber(retry[2])) end
  if ctx.held ~= '' then at = min(at, ctx.now + HOLD_POLL_US) end
  if next(ctx.memory.counts) then at = min(at, max(ctx.memory.flushed_us + 1000000, ctx.now)) end
  if at == huge then return -1 end
  return max(0, at - ctx.now)
end

local function drained(ctx)
  ctx.now_text = digits(ctx.now)
  if ctx.held ~= '' then release_where_room(ctx) end
  ctx.has_retries = call('EXISTS', ctx.retries) == 1
  if ctx.has_retries then announce(ctx) end
  local more = drain_due(ctx)
  local sweeping = sweep(ctx, more)
  flush_counts(ctx)
  return {
    wait_us(ctx, more or sweeping), ctx.dispatched, ctx.rejected, ctx.latest_us, ctx.id or '', ctx.prev and 1 or 0,
    notes_of(ctx),
  }
end

-- drip__drain: let out what is due.
-- keys   <prefix>:schedule
-- args   now_us
-- reply  { wait_us (0 = call again, -1 = nothing waits), dispatched, rejected, latest_us (the latest of this call),
--          record_id ('' = none is stored), spreading, notes { kind, subject, detail, count, ... } }
-- cost   O(batch)
local function drain(keys, args)
  local prefix = match(keys[1] or '', '^(.+):schedule$')
  if not prefix then return refuse('BADARG', 'drain takes the schedule key') end
  return drained(open(prefix, args[1]))
end

-- filled_queues: of the first buckets among some queue keys that need a look, half a batch of them at most: their names,
-- where they are among the keys, how many jobs wait, and how many keys were looked at. Most reports are the echo of a dispatch:
-- where no queue is there any more, one look is enough for all, and one that is as the dispatch left it needs nothing, for that
-- has cut and scheduled it.
local function filled_queues(ctx, keys)
  local names, at, lens, head, most = {}, {}, {}, ctx.queues, max(1, floor(ctx.limits.batch / 2))
  if call('EXISTS', ctx.schedule) == 0 then forget_settled(ctx.memory, ctx.now) end
  local settled = ctx.memory.settled
  if #keys > 1 and call('EXISTS', unpack(keys)) == 0 then return names, at, lens, #keys end
  for i = 1, #keys do
    if #names == most then return names, at, lens, i - 1 end
    local key = keys[i]
    local bucket = sub(key, 1, #head) == head and sub(key, #head + 1)
    if bucket and valid_name(bucket) then
      local len = pcall_redis('LLEN', key)
      if type(len) ~= 'number' then
        note(ctx, 'wrong-type', key)
      elseif len > 0 and len ~= settled[bucket] then
        local n = #names + 1
        names[n], at[n], lens[n] = bucket, i, len
      elseif settled[bucket] then
        settled[bucket] = nil -- once: it is only for the echo
      end
    else
      note(ctx, 'bad-name', key)
    end
  end
  return names, at, lens, #keys
end

-- look_at_queues: cut what is over, schedule what is not scheduled, and write nothing otherwise. Replies how many of the
-- queues were looked at: a call that has cut as much as one may stops before the next.
local function look_at_queues(ctx, keys)
  local names, at, lens, looked = filled_queues(ctx, keys)
  if #names == 0 then return looked end
  ctx.looked = #names
  local dues, levels, add, s = call('ZMSCORE', ctx.schedule, unpack(names)), levels_of(ctx, names), {}, {}
  for i, bucket in ipairs(names) do
    if spent(ctx) then looked = at[i] - 1 break end
    local due, held_by = tonumber(dues[i] or nil), nil
    if not due then due, held_by = held_due(ctx, bucket) end
    look(ctx, s, bucket, keys[at[i]], lens[i], due, levels[i])
    -- A queue that was named twice may have been cut since its length was read.
    if s.over > 0 then look(ctx, s, bucket, s.queue, call('LLEN', s.queue), due, levels[i]) end
    settle(ctx, s)
    s.due = s.due or ctx.now
    if held_by then
      store_due(ctx, s, held_by)
    elseif s.due ~= s.stored_due then
      add[#add + 1] = digits(s.due)
      add[#add + 1] = bucket
    end
  end
  if #add > 0 then call('ZADD', ctx.schedule, unpack(add)) end
  return looked
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
  local looked = look_at_queues(ctx, keys)
  local reply = drained(ctx)
  reply[8] = looked
  return reply
end
