-- needs: base, base.keys, base.names, policy.forward, route.position
-- Routes: the ready streams, and the lists that other workers serve (policy/forward). How many more jobs a route takes
-- is in route/room.

local route = {}
do
  local is_error, by_name = base.is_error, base.by_name

  local LATELY_MS = 60000 -- a worker that asks again and again does so more often than this

  -- No id follows it, and Redis does not take it as the beginning of a range.
  local LAST_ID = '18446744073709551615-18446744073709551615'

  -- make: create a route's stream and its group, where they are missing. Only functions that may run when memory is
  -- full call it: otherwise a full Redis could never be emptied. Replies an error, or nil.
  function route.make(space, name)
    local stream, k = keys.ready(space, name), keys.of(space)
    local is_new = call('EXISTS', stream) == 0
    -- Of a new stream nothing is read: Redis would say that it does not know (route/position).
    local made = is_new and pcall_redis('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM', 'ENTRIESREAD', '0')
      or pcall_redis('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
    local err = is_error(made)
    if err and not find(err, 'BUSYGROUP', 1, true) then return err end
    if not err then position.made(k, name, stream, is_new and 0) end
    call('SADD', k.routes, name)
  end

  -- add: put a job into a ready stream. The fields of an entry are spelled only here; `...` are further ones, names and
  -- values by turns. Replies the id of the entry, or an error as pcall has it.
  function route.add(stream, bucket, job, attempt, due_text, now_text, lease, ...)
    return pcall_redis('XADD', stream, '*', 'bucket', bucket, 'job', job, 'attempt', attempt, 'due_us', due_text,
      'at_us', now_text,
      'lease_ms', lease, ...)
  end

  -- refuse: the refusal where a stream is needed that could not be made.
  function route.refuse(space, name, err)
    local key = keys.ready(space, name)
    if find(err, 'WRONGTYPE', 1, true) then return base.wrong_type(key, 'stream') end
    return base.refuse('WRONGTYPE', 'route ' .. name .. ' has no stream ' .. key .. ': ' .. err)
  end

  -- group_of: what Redis says of the group `workers` of a stream, or nil where it is missing.
  function route.group_of(stream)
    for _, list in ipairs(call('XINFO', 'GROUPS', stream)) do
      local group = by_name(list)
      if group.name == 'workers' then return group end
    end
  end

  -- Two subcommands of XGROUP can lose jobs in the wrong hands, so `dripd acl` grants them to daemons alone. Where the
  -- caller may not use them, the repairs that need them are left out, and tried again after a minute.
  local REFUSED_S = 60
  local refused_s

  local function may_move_groups()
    if not refused_s then return true end
    local now = call('TIME')[1] + 0
    if now - refused_s < REFUSED_S and now >= refused_s then return false end
    refused_s = nil
    return true
  end

  -- is_done: whether such a subcommand was run, by its reply.
  local function is_done(reply)
    local err = is_error(reply)
    if err and base.is_refused(err) then refused_s = call('TIME')[1] + 0 end
    return not err
  end

  -- consumers_of: what Redis says of the workers of a stream; none where it has no group.
  function route.consumers_of(stream)
    local consumers = pcall_redis('XINFO', 'CONSUMERS', stream, 'workers')
    if is_error(consumers) then return {} end
    for i, list in ipairs(consumers) do consumers[i] = by_name(list) end
    return consumers
  end

  -- workers_of: those workers of a stream that hold a job, or asked for one lately. The names of others stay for an
  -- hour, or, where nobody may delete them, for ever.
  function route.workers_of(ctx, stream)
    local list, ahead_ms = {}, max(0, floor((ctx.now - base.clock('')) / 1000))
    for _, consumer in ipairs(route.consumers_of(stream)) do
      if consumer.pending > 0 or consumer.idle + ahead_ms <= LATELY_MS then list[#list + 1] = consumer end
    end
    return list
  end

  -- forget_silent: delete the names of workers that hold nothing and have not asked for so long: they ended. A worker
  -- that waits in an endless read gets its name again with its next job.
  -- cost   O(names)
  function route.forget_silent(stream, longer_than_ms, most)
    if not may_move_groups() then return end
    for _, consumer in ipairs(route.consumers_of(stream)) do
      if consumer.pending == 0 and consumer.idle > longer_than_ms and most > 0 then
        if not is_done(pcall_redis('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name)) then return end
        most = most - 1
      end
    end
  end

  -- set_read: correct the group's count of read entries: all of the stream, but for so many. Replies that count, or nil
  -- where that is not allowed.
  function route.set_read(stream, group, unread)
    if not may_move_groups() then return nil end
    local added = by_name(call('XINFO', 'STREAM', stream))['entries-added']
    local read = max(0, added - unread)
    local id, text = group['last-delivered-id'], base.digits(read)
    return is_done(pcall_redis('XGROUP', 'SETID', stream, 'workers', id, 'ENTRIESREAD', text)) and read or nil
  end

  -- newest_before_group: the newest id of a stream, where its group is past it; else nil. Somebody set the group to an
  -- id in the future, and it would not deliver entries before that.
  function route.newest_before_group(stream, group)
    local newest = by_name(call('XINFO', 'STREAM', stream))['last-generated-id']
    return names.is_after(group['last-delivered-id'], newest) and newest or nil
  end

  -- deliver_after: make the group deliver what is after the newest entry. Replies whether that is allowed.
  function route.deliver_after(stream, id)
    return may_move_groups() and is_done(pcall_redis('XGROUP', 'SETID', stream, 'workers', id))
  end

  -- undelivered: how many entries of a ready stream no worker has read yet, at most. Redis knows this as the group's
  -- lag, but not always. It has no lag after the newest delivered entry was deleted, or after it loaded its append-only
  -- file. The lag counts undelivered entries that were deleted (7.0.15). A replica is not told what was read, so that
  -- after a failover the lag is too high until the reaper corrects it. So the reply is never more than the entries that
  -- are not pending.
  function route.undelivered(group, length)
    local most = max(0, length - group.pending)
    return group.lag and group.lag >= 0 and min(group.lag, most) or most
  end

  -- knows_lag: whether the number of undelivered entries can be right. It cannot where the lag is not known, or is more
  -- than the entries that are not pending: workers hold entries that somebody deleted, or the server was a replica.
  function route.knows_lag(group, length)
    return group.lag and group.lag >= 0 and group.lag <= length - group.pending
  end

  -- oldest: the oldest entry that no worker has read yet, or nil.
  function route.oldest(stream, group)
    local delivered = group and group['last-delivered-id']
    if delivered == LAST_ID then return nil end
    return call('XRANGE', stream, delivered and '(' .. delivered or '-', '+', 'COUNT', 1)[1]
  end

  -- look_at_stream: the figures of a ready stream, whose key may be missing or have any type, for `explain` and the
  -- like. Writes nothing.
  -- reply   { stream, wrong: its type where it is no stream, ready: undelivered jobs, oldest: the oldest of them, or
  --         nil,
  --           group: as `group_of`, or nil }
  function route.look_at_stream(ctx, name)
    local r = { stream = keys.ready(ctx.space, name), ready = 0 }
    local length = pcall_redis('XLEN', r.stream)
    if is_error(length) then
      r.wrong = call('TYPE', r.stream).ok
    elseif length > 0 or call('EXISTS', r.stream) == 1 then
      r.group = route.group_of(r.stream)
      local most = r.group and route.undelivered(r.group, length) or length
      r.oldest = most > 0 and route.oldest(r.stream, r.group) or nil
      r.ready = r.oldest and most or 0
    end
    return r
  end

  -- look: the same for a route of either kind. A list has `to`, its key, and `wrong_key` and `wanted` where a key
  -- cannot be used.
  function route.look(ctx, name)
    local f = forward.of(ctx.rec, name)
    if not f then return route.look_at_stream(ctx, name) end
    local at, length, key, wanted = forward.look(f, ctx.k)
    return {
      stream = at.to,
      to = at.to,
      ready = length,
      wrong_key = key,
      wanted = wanted,
      wrong = key and call('TYPE', key).ok,
    }
  end

  -- held: the routes for which buckets are held, as a list, and the place of each there by name. Both stay as they are
  -- where the routes change: then the text is read anew.
  function route.held(ctx)
    if ctx.held_text ~= ctx.held then
      local list, by = {}, {}
      for name in gmatch(ctx.held, '%S+') do list[#list + 1], by[name] = name, #list + 1 end
      ctx.held_text, ctx.held_list, ctx.held_places = ctx.held, list, by
    end
    return ctx.held_list, ctx.held_places
  end

  -- write_held: store for which routes buckets are held.
  local function write_held(ctx, held)
    ctx.held = held
    if held == '' then call('HDEL', ctx.k.policy, 'held') else call('HSET', ctx.k.policy, 'held', held) end
  end

  -- is_held: whether buckets are held for a route.
  -- hold: buckets are held for it from now on.
  -- free: none are held for it any more.
  function route.is_held(ctx, name)
    if ctx.held == '' then return false end
    local _, places = route.held(ctx)
    return places[name] ~= nil
  end

  function route.hold(ctx, name)
    if not route.is_held(ctx, name) then write_held(ctx, ctx.held == '' and name or ctx.held .. ' ' .. name) end
  end

  function route.free(ctx, name)
    local others = {}
    for _, other in ipairs((route.held(ctx))) do
      if other ~= name then others[#others + 1] = other end
    end
    write_held(ctx, table.concat(others, ' '))
  end
end
