-- needs: base, base.keys, base.names, policy.forward
-- Routes: the ready streams, and the lists that other workers serve (policy/forward). How many more jobs a route takes
-- is in route/room.

local route = {}
do
  local is_error, by_name = base.is_error, base.by_name

  -- No id follows it, and Redis does not take it as the beginning of a range.
  local LAST_ID = '18446744073709551615-18446744073709551615'

  -- make: create a route's stream and its group, where they are missing. Only functions that may run when memory is
  -- full call it: otherwise a full Redis could never be emptied. Replies an error, or nil.
  function route.make(space, name)
    local made = pcall_redis('XGROUP', 'CREATE', keys.ready(space, name), 'workers', '0', 'MKSTREAM')
    local err = is_error(made)
    if err and not find(err, 'BUSYGROUP', 1, true) then return err end
    call('SADD', keys.of(space).routes, name)
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

  -- Two subcommands of XGROUP can lose jobs in the wrong hands, so `dripd acl` grants them to nobody. For a daemon with
  -- such a role the repairs that need them are left out. Once refused they are not tried again.
  local may_move_groups = true
  local own_moves = 0 -- how often these functions called XGROUP SETID

  local function note_permission(reply)
    local err = is_error(reply)
    may_move_groups = not (err and base.is_refused(err))
  end

  -- set_delivered: set the group's last delivered id.
  local function set_delivered(stream, ...)
    note_permission(pcall_redis('XGROUP', 'SETID', stream, 'workers', ...))
    if may_move_groups then own_moves = own_moves + 1 end
  end

  -- foreign_moves: how often others called XGROUP SETID on this server, for any stream. The number falls where the
  -- server's figures are reset, and is 0 where the caller may not ask.
  function route.foreign_moves()
    local figures = pcall_redis('INFO', 'commandstats')
    if is_error(figures) then return 0 end
    return (tonumber(match(figures, 'cmdstat_xgroup|setid:calls=(%d+)')) or 0) - own_moves
  end

  -- forget_silent: delete the names of workers that hold nothing and have not asked for so long: they ended. A worker
  -- that waits in an endless read gets its name again with its next job.
  -- cost   O(names)
  function route.forget_silent(stream, longer_than_ms, most)
    local consumers = may_move_groups and pcall_redis('XINFO', 'CONSUMERS', stream, 'workers') or {}
    if is_error(consumers) then return end -- no stream yet, or no group
    for _, list in ipairs(consumers) do
      local consumer = by_name(list)
      if consumer.pending == 0 and consumer.idle > longer_than_ms and most > 0 then
        note_permission(pcall_redis('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name))
        if not may_move_groups then return end
        most = most - 1
      end
    end
  end

  -- all_read: correct the group's count of read entries, where nothing is undelivered.
  function route.all_read(stream, group)
    if not may_move_groups then return end
    local added = by_name(call('XINFO', 'STREAM', stream))['entries-added']
    set_delivered(stream, group['last-delivered-id'], 'ENTRIESREAD', added)
  end

  -- newest_before_group: the newest id of a stream, where its group is past it; else nil. Somebody set the group to an
  -- id in the future, and it would not deliver entries before that.
  function route.newest_before_group(stream, group)
    local newest = by_name(call('XINFO', 'STREAM', stream))['last-generated-id']
    return names.is_after(group['last-delivered-id'], newest) and newest or nil
  end

  -- deliver_after: make the group deliver what is after an id. Replies whether that is allowed.
  function route.deliver_after(stream, id)
    if may_move_groups then set_delivered(stream, id) end
    return may_move_groups
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
