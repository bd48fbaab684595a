-- Ready streams: how many jobs a route still takes, and the buckets it holds while it takes none.

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
      note(ctx, 'wrong-type', r.stream, err)
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
