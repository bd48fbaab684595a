-- needs: base, route, route.room, tree.turn_at
-- Figures of routes: what no worker has read yet, how old that is, how fast workers take jobs, and which buckets are
-- held for a route. Nothing is written.

local routes = {}
do
  local is_error, digits = base.is_error, base.digits

  local ROUTES_MOST = 1000 -- routes in a reply
  local NAMES_READ = 10000 -- names of workers that are read: where there are more, all of them count

  -- names: the routes that have a ready stream, and those that forward. The second reply is the former as a set.
  function routes.names(ctx)
    local known, has_stream = pcall_redis('SMEMBERS', ctx.k.routes), {}
    if known.err then known = {} end
    for _, name in ipairs(known) do has_stream[name] = true end
    for name in pairs((ctx.rec.base or ctx.rec).forwards or {}) do
      if not has_stream[name] then known[#known + 1] = name end
    end
    table.sort(known)
    while known[ROUTES_MOST + 1] do known[#known] = nil end
    return known, has_stream
  end

  -- now: the figures of a route, given the reply of `route.look`.
  -- reply  { age_us of its oldest undelivered job, 0: there is none; window_us, nil: it is off; limit; held: buckets;
  --          taken, over_us: so many jobs were taken in so long, both nil where that is not known; sent: undelivered
  --          jobs, of a list those that this server sent }
  function routes.now(ctx, name, found)
    local age_us, sent, undelivered = 0, found.ready, found.ready
    if found.to then
      age_us, sent, undelivered = room.age_of_list(ctx, name, found.to, not found.wrong and found.ready or nil)
    elseif found.oldest then
      age_us = room.age_of_stream(ctx, name, found.oldest, found.group)
    end
    local taken, over_us = room.pace_of(ctx, name, undelivered)
    return {
      age_us = age_us, window_us = room.window_of(ctx, name), limit = room.limit_of(ctx, name),
      held = turn_at.held(ctx, name), taken = taken, over_us = over_us, sent = sent,
    }
  end

  -- taken_in_all: how many of the jobs that ever entered a route were taken. The number never falls, although what is
  -- undelivered is not always known exactly (entries that others delete, jobs that others push into a list).
  local function taken_in_all(ctx, name, undelivered)
    local counter = 'dispatched:' .. name
    local written = pcall_redis('HGET', ctx.k.stats, counter)
    local entered = (tonumber(not is_error(written) and written or nil) or 0) + (ctx.memory.counts[counter] or 0)
    local r = ctx.memory.rooms[name]
    local taken = max(0, entered - undelivered, r and r.taken_most or 0)
    if r then r.taken_most = taken end
    return taken
  end

  -- workers: how many workers a ready stream has: those that hold a job, or asked for one lately.
  function routes.workers(ctx, found)
    local there_are = found.group.consumers
    if there_are > NAMES_READ then return there_are end
    return #route.workers_of(ctx, found.stream)
  end

  local function row(ctx, name, found)
    local now, group = routes.now(ctx, name, found), found.group
    return {
      name, { found.to or '', found.wrong and (found.wrong_key or found.stream) or '', found.wanted or 'stream' },
      found.ready,
      digits(now.age_us), digits(now.window_us or 0), now.limit, now.held, group and group.pending or 0,
      group and routes.workers(ctx, found) or 0,
      taken_in_all(ctx, name, now.sent), { now.taken or 0, digits(now.over_us or 0) },
    }
  end

  -- drip__routes: the figures of all routes.
  -- keys   <prefix>:policy
  -- args   now_us
  -- reply  { now_us (a text), { { route, { the key of the list that it forwards to ('': it has a ready stream), a key
  --        that it cannot use ('': none) and what that must hold }, undelivered jobs, us since the oldest of them left,
  --        ready_window in us (0: off), limit, buckets that are held for it, jobs with workers, workers, jobs taken in
  --        all, { jobs taken lately, in so many us } (both 0: not known) }, ... } }, at most 1,000 routes; times are
  --        texts
  -- errors BADARG
  -- cost   O(routes + workers), and the bytes of one job of each
  function routes.list(ctx)
    local list, known, has_stream = {}, routes.names(ctx)
    for _, name in ipairs(known) do
      local found = route.look(ctx, name)
      list[#list + 1] = row(ctx, name, found)
      local before = found.to and has_stream[name] and route.look_at_stream(ctx, name)
      local is_left = before and before.ready + (before.group and before.group.pending or 0) > 0
      if is_left then list[#list + 1] = row(ctx, name, before) end -- from before it forwarded
    end
    return { ctx.now_text, list }
  end
end
