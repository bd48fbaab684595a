-- needs: base, base.keys, context, context.memory, control.lifetimes, jobs, jobs.heal, jobs.release,
--   limits.constraint_store, policy.record, queue.retries, route, route.position, state
-- Reap: take back jobs from workers that fell silent, and delete entries that are finished, for workers that use a
-- plain XACK.

local reap = {}
do
  local is_error, integer, clock = base.is_error, base.integer, base.clock
  local note, count = context.note, context.count

  local LEASE_MIN_MS = 1000
  local REMOVE_MOST = 1000 -- entries deleted in a call
  local THOROUGH_EVERY = 5 -- every so many passes one is thorough: see `may_hide`
  local SILENT_MS = 3600000 -- a worker that held nothing and asked for nothing in so long has ended

  -- lease_of: how long an entry may stay pending, in ms: 0 for one that is no job, nil for one that is gone.
  local function lease_of(ctx, stream, id)
    local name = stream .. ' ' .. id
    local lease = memory.ask_lease(ctx.memory, name)
    if lease then return lease end
    local fields = jobs.read_entry(stream, id)
    if not fields then return nil end
    ctx.bytes = ctx.bytes + #(fields.job or '')
    lease = 0
    if jobs.is_job(fields) then
      lease = integer(fields.lease_ms or '') or 0
      if lease == 0 then lease = record.policy_of(ctx.rec, fields.bucket).lease_ms end -- somebody else's entry
    end
    memory.note_lease(ctx.memory, name, lease)
    return lease
  end

  -- restart: restart the lease of an entry that was delivered at this very moment, or, because the clock stepped back,
  -- later than now. Redis replies an idle time of 0 ms for both. For the first this changes nothing; the second would
  -- otherwise wait out the step as well.
  local function restart(stream, id, consumer)
    call('XCLAIM', stream, 'workers', consumer, '0', id, 'IDLE', '0', 'JUSTID')
  end

  local function vanished(ctx, stream, route_name, id)
    release.entry(ctx, route_name, id)
    call('XACK', stream, 'workers', id) -- somebody deleted the pending entry: there is no job to take back
    note(ctx, 'vanished', stream .. ' ' .. id)
  end

  -- take_back: take back a pending entry that was delivered so often. `is_over` says, given its fields, whether it is
  -- to be taken back at all. Replies whether it is gone.
  local function take_back(ctx, pass, stream, route_name, row, how, is_over)
    local id = row[1]
    local fields, list = jobs.read_entry(stream, id)
    if not fields then -- its lease was remembered, but the entry is gone
      vanished(ctx, stream, route_name, id)
      return true
    end
    ctx.bytes = ctx.bytes + #(fields.job or '')
    jobs.count_deliveries(fields, row[4])
    if is_over and not is_over(ctx, fields) then return false end
    local outcome = jobs.take_back(ctx, stream, route_name, id, fields, list, how)
    if is_error(outcome) then
      note(ctx, 'refused', stream, is_error(outcome))
      return true
    end
    pass.taken_back = pass.taken_back + 1
    count(ctx, 'lease_expired', 1)
    if outcome == 2 then count(ctx, 'expired_dead', 1) end
    return true
  end

  -- expire: take back a pending entry whose lease has run out, or that was delivered more often than it may be tried:
  -- each delivery begins a lease. pass.left_ms is the shortest time that a lease still runs.
  local function expire(ctx, pass, stream, route_name, row)
    if not pass.takes_back then return end
    local id, idle_ms = row[1], row[3] + pass.ahead_ms
    local too_often = { dead = true, reason = 'delivered too often' }
    if row[4] > 1 and take_back(ctx, pass, stream, route_name, row, too_often, jobs.is_used_up) then return end
    if row[3] == 0 then restart(stream, id, row[2]) end
    if idle_ms < LEASE_MIN_MS then
      pass.left_ms = min(pass.left_ms, LEASE_MIN_MS - idle_ms)
      return
    end
    local lease = lease_of(ctx, stream, id)
    if not lease then
      vanished(ctx, stream, route_name, id)
    elseif idle_ms < lease then
      pass.left_ms = min(pass.left_ms, lease - idle_ms)
    else
      take_back(ctx, pass, stream, route_name, row, { reason = 'lease expired' })
    end
  end

  -- remove_between: delete the entries after `from` and before `to` (both as XRANGE reads them); all of them are
  -- finished. Replies false where the call has done enough and some are left.
  local function remove_between(ctx, pass, stream, from, to)
    local most = 1
    while true do
      if ctx.bytes >= MIB or pass.removed >= REMOVE_MOST then return false end
      local page, ids, bytes = call('XRANGE', stream, from, to, 'COUNT', most), {}, 0
      for i, entry in ipairs(page) do
        ids[i] = entry[1]
        for j = 2, #entry[2], 2 do bytes = bytes + #entry[2][j] end
      end
      if #ids > 0 then position.delete(stream, ids) end
      ctx.bytes, pass.removed = ctx.bytes + bytes, pass.removed + #ids
      if #ids < most then return true end
      -- Read more at once while they are small: XRANGE does not tell how large the next ones are.
      most = bytes < 4096 * most and min(16, most * 4) or 1
    end
  end

  -- trim_front: delete what is before `id`; whole nodes of the stream first, a bounded number of them. Replies false
  -- where more is left.
  local function trim_front(pass, stream, id)
    local n = position.note_deleted(stream, call('XTRIM', stream, 'MINID', '~', id, 'LIMIT', 1000))
    pass.removed = pass.removed + n
    if n >= 900 then return false end
    pass.removed = pass.removed + position.note_deleted(stream, call('XTRIM', stream, 'MINID', '=', id))
    return true
  end

  -- may_hide: whether finished entries may be behind a pending one. A wrong lag may hide finished ones by chance, so
  -- some passes always look for them.
  local function may_hide(stream, group, lag, thorough)
    return thorough or lag == nil or call('XLEN', stream) ~= group.pending + lag
  end

  -- take_back_skipped: take back the entries of a range that the group passed when it was moved, and that nobody holds:
  -- they may never have been delivered, and go back into their buckets. An entry that a plain XACK finished since the
  -- group was seen before the move is delivered once more, because Redis does not tell the two apart. Replies nil,
  -- 'more' where some are left for another call, 'stop' where one cannot go back.
  local function take_back_skipped(ctx, pass, stream, route_name, range)
    local how = { keep = true, delay_us = 0, reason = 'skipped' }
    while true do
      if ctx.bytes >= MIB or pass.skipped >= REMOVE_MOST then return 'more' end
      local entry = call('XRANGE', stream, '(' .. range.from, range.to, 'COUNT', 1)[1]
      if not entry then return nil end
      local id = entry[1]
      if #call('XPENDING', stream, 'workers', id, id, 1) == 0 then
        local fields, list = jobs.read_entry(stream, id)
        ctx.bytes, pass.skipped = ctx.bytes + #(fields.job or ''), pass.skipped + 1
        local outcome = jobs.take_back(ctx, stream, route_name, id, fields, list, how)
        if is_error(outcome) then
          note(ctx, 'refused', stream, is_error(outcome))
          return 'stop'
        end
        note(ctx, 'skipped', stream)
      end
      range.from = id
    end
  end

  -- take_back_moved: take back what the group of a route was made to skip. Where it was set to an id that the stream
  -- has not reached, it comes back to the newest one. Replies as `take_back_skipped`.
  local function take_back_moved(ctx, pass, stream, route_name, p, newest)
    while p.skipped[1] do
      local left = take_back_skipped(ctx, pass, stream, route_name, p.skipped[1])
      if left then return left end
      table.remove(p.skipped, 1)
    end
    if not newest then return nil end
    if not route.deliver_after(stream, newest) then return 'stop' end
    p.id, p.read = newest, false
    return 'more'
  end

  -- look_at_group: notice where the group was moved, and take back what it was made to skip. Replies nil and its lag:
  -- how many entries no worker has read yet, nil where Redis does not know; or as `take_back_skipped`.
  -- Where there is none but the lag is not 0, the group's count is corrected: on a promoted replica it would stay wrong
  -- (see `undelivered` in route).
  local function look_at_group(ctx, pass, stream, name, group, length, p)
    local lag = group.lag or nil
    local is_all_read = lag ~= 0 and not route.oldest(stream, group)
    local newest = (is_all_read or position.is_of_future(group)) and route.newest_before_group(stream, group)
    position.see(ctx, p, name, stream, group, length, newest)
    local left = take_back_moved(ctx, pass, stream, name, p, newest)
    if left then return left end
    if is_all_read and lag then p.read = route.set_read(stream, group, 0) or p.read end
    return nil, is_all_read and 0 or lag
  end

  -- end_route: all entries of a route are looked at. A group whose count is not known gets one: without it nobody would
  -- see that it is moved. What is finished is deleted by now, so that all but the pending ones are undelivered.
  local function end_route(ctx, stream, name, p)
    if not p.read then
      local group = route.group_of(stream)
      p.read = route.set_read(stream, group, max(0, call('XLEN', stream) - group.pending)) or false
    end
    position.store(ctx, name, p)
  end

  -- look_at_empty: a route with no entries, or without a stream. What is not known of its group is looked at once, and
  -- again now and then: a daemon at rest asks little.
  local function look_at_empty(ctx, pass, stream, name)
    local is_asked = pass.thorough or not ctx.memory.positions[name]
    local group = is_asked and call('EXISTS', stream) == 1 and route.group_of(stream)
    if group then
      local p, newest = position.of(ctx, name), route.newest_before_group(stream, group)
      position.see(ctx, p, name, stream, group, 0, newest)
      p.skipped = {} -- nothing is there
      if newest and route.deliver_after(stream, newest) then p.read = false end
      end_route(ctx, stream, name, p)
    end
    if not pass.named[name] then
      call('SREM', ctx.k.routes, name)
      position.forget(ctx, name, true)
    end
  end

  -- reap_route: one page of a route, from the pending entry after `from` ('' = the beginning). Replies where the next
  -- page begins, or nil where the route is done. An entry is finished when it was delivered and is not pending.
  local function reap_route(ctx, pass, name, from)
    local stream = keys.ready(ctx.space, name)
    local length = pcall_redis('XLEN', stream)
    if is_error(length) then note(ctx, 'wrong-type', stream, is_error(length)) return nil end
    pass.live = pass.live + length
    if pass.thorough and from == '' then route.forget_silent(stream, SILENT_MS - pass.ahead_ms, REMOVE_MOST) end
    if length == 0 then
      look_at_empty(ctx, pass, stream, name)
      return nil
    end
    local group = route.group_of(stream)
    if not group then
      route.make(ctx.space, name)
      position.forget(ctx, name)
      return nil
    end
    local p, delivered, most = position.of(ctx, name), group['last-delivered-id'], ctx.limits.batch - pass.rows
    local left, lag = look_at_group(ctx, pass, stream, name, group, length, p)
    if left then return left == 'more' and '' or nil end
    local rows = call('XPENDING', stream, 'workers', from == '' and '-' or '(' .. from, '+', most)
    if from == '' then
      if not trim_front(pass, stream, rows[1] and rows[1][1] or delivered) then return '' end
      if not rows[1] then
        pass.removed = pass.removed + position.delete(stream, { delivered })
        return end_route(ctx, stream, name, p)
      end
    end
    pass.rows = pass.rows + #rows
    local behind = may_hide(stream, group, lag, pass.thorough)
    local last = from
    for _, row in ipairs(rows) do
      if behind and last ~= '' and not remove_between(ctx, pass, stream, '(' .. last, '(' .. row[1]) then
        return last
      end
      last = row[1]
      expire(ctx, pass, stream, name, row)
      if ctx.bytes >= MIB then return last end
    end
    if #rows == most then return last end
    if behind and last ~= '' and not remove_between(ctx, pass, stream, '(' .. last, delivered) then return last end
    return end_route(ctx, stream, name, p)
  end

  -- drip__reap: a part of a pass over the dispatched jobs: take back those whose lease has run out, delete those that
  -- are finished. A pass is over when the route in the reply is empty.
  -- keys   <prefix>:policy
  -- args   now_us, "1" to take back | "0" to delete only, route and entry id where this part begins ('' '' = a new
  --        pass)
  -- reply  { route, id, left_ms (until the next lease may end, -1 = none), taken_back, removed, live (entries seen),
  --          dead (length of the dead stream), notes { kind, subject, detail, count, ... }, 1: entries hold slots, or
  --          nodes wait (jobs/heal), 1: a pass begins, and keys may have a time to live (control/lifetimes) }
  -- cost   O(batch)
  function reap.reap(ctx, args)
    local m = ctx.memory
    if (args[3] or '') == '' then
      m.passes = m.passes + 1
      memory.age_leases(m, ctx.now)
    end
    local pass = {
      left_ms = huge, rows = 0, taken_back = 0, skipped = 0, removed = 0, live = 0, ahead_ms = 0,
      named = record.routes_of(ctx.rec),
      takes_back = args[2] == '1', thorough = m.passes % THOROUGH_EVERY == 0,
    }
    if args[1] ~= '' then pass.ahead_ms = floor((ctx.now - clock('')) / 1000) end
    ctx.earlier = false
    local list = call('SMEMBERS', ctx.k.routes)
    table.sort(list)
    local at, from = '', args[4] or ''
    for i, name in ipairs(list) do
      if name >= (args[3] or '') then
        from = reap_route(ctx, pass, name, name == args[3] and from or '')
        if from then at = name break end
        local is_spent = pass.removed >= REMOVE_MOST or pass.skipped >= REMOVE_MOST or ctx.bytes >= MIB
        if is_spent or pass.rows >= ctx.limits.batch then
          at, from = list[i + 1] or '', ''
          break
        end
      end
    end
    state.flush(ctx)
    local more_cooled, idle = state.forget_cooled(ctx)
    if more_cooled then ctx.earlier = true end -- a drain will forget the others
    retries.forget_idle(ctx, idle)
    if constraint_store.drop_expired(ctx) then ctx.earlier = true end
    if ctx.earlier then context.wake(ctx.k) end
    -- No lease that is given from now on is shorter than the shortest one.
    if pass.live > 0 then pass.left_ms = min(pass.left_ms, max(LEASE_MIN_MS, ctx.rec.shortest_lease_ms)) end
    local dead = pcall_redis('XLEN', ctx.k.dead)
    return {
      at, from or '', pass.left_ms == huge and -1 or pass.left_ms, pass.taken_back, pass.removed, pass.live,
      is_error(dead) and 0 or dead, context.notes_of(ctx), heal.is_needed(ctx.k),
      (args[3] or '') == '' and lifetimes.may_end() and 1 or 0,
    }
  end
end
