-- The sweep: one pass over every scheduled bucket and every waiting retry, a batch a drain. It carries a change of
-- policy to all of them, and it finds what lies too far ahead after the clock stepped back. It starts when a record is
-- new, when the clock went back, and at the first drain after the server or the library started; where it stands is
-- kept in memory only, and it begins anew when that is lost.
--
-- sweep_ahead: of a page of the schedule, what lies too far ahead; all that is to be found while no change spreads.
local function sweep_ahead(ctx, at, key, page)
  local now, record, entries = ctx.now, ctx.record, page[2]
  for i = 1, #entries, 2 do
    local latest = now + (record.plain or policy_of(record, entries[i])).interval_us
    if entries[i + 1] + 0 > latest then call('ZADD', key, digits(latest), entries[i]) end
  end
  at.cursor = page[1]
  return page[1] == '0'
end

-- sweep_page: a page of the schedule, or of the buckets held by a route. A held bucket whose policy names another route
-- now, or which is not due any more, goes back on the schedule. Replies whether it was the last page.
local function sweep_page(ctx, at, key, route_name)
  local page = call('ZSCAN', key, at.cursor, 'COUNT', ctx.page)
  if not ctx.prev and not route_name then return sweep_ahead(ctx, at, key, page) end
  local names, dues, changed = {}, {}, {}
  for i = 1, #page[2], 2 do
    names[#names + 1] = page[2][i]
    dues[#dues + 1] = tonumber(page[2][i + 1])
  end
  local levels = ctx.prev and levels_of(ctx, names) or {}
  local whole_page = true
  local s = {}
  for i, bucket in ipairs(names) do
    if spent(ctx) then whole_page = false break end -- the same page again: those done by now are marked as reached
    local queue, len = nil, 0
    if ctx.prev then
      queue = queue_key(ctx, bucket)
      len = pcall_redis('LLEN', queue)
      if is_error(len) then len = 0 end
    end
    look(ctx, s, bucket, queue, len, dues[i], levels[i])
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
      local page = call('ZSCAN', ctx.retries, at.cursor, 'COUNT', ctx.page)
      for i = 1, #page[2], 2 do at.waiting[#at.waiting + 1] = page[2][i] end
      at.cursor, at.last = page[1], page[1] == '0'
      return #at.waiting == 0 and at.last
    end
    at.bucket, at.inner = table.remove(at.waiting), '0'
  end
  local key = retry_key(ctx, at.bucket)
  local page = call('ZSCAN', key, at.inner, 'COUNT', ctx.page)
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

-- sweep: the next slice: a batch, or an eighth of one where other work waits and no change spreads. Replies whether there is
-- more to do.
local function sweep(ctx, busy)
  local memory, batch = ctx.memory, ctx.limits.batch
  ctx.page = busy and not ctx.prev and ceil(batch / 8) or batch
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
