-- needs: base, base.keys, control.daemons, policy.forward, queue.delayed, route, state.waiting, view.routes
-- Figures: what monitoring reads of a prefix: counters, sizes and ages, in one call whose cost does not depend on the
-- number of buckets. Nothing is written.

local figures = {}
do
  local digits, number = base.digits, base.number

  local HELD_READ = 100 -- held buckets of a route whose dues are read, those with the next turns

  -- counters: what was counted since the keys exist, with what is not written yet.
  local function counters(ctx)
    local of = {}
    local written = pcall_redis('HGETALL', ctx.k.stats)
    for i = 1, written.err and 0 or #written, 2 do of[written[i]] = tonumber(written[i + 1]) or 0 end
    for name, n in pairs(ctx.memory.counts) do of[name] = (of[name] or 0) + n end
    for quarter, n in pairs(ctx.memory.lates) do of['late:' .. quarter] = (of['late:' .. quarter] or 0) + n end
    local list = {}
    for name, n in pairs(of) do base.append(list, name, digits(n)) end
    return list
  end

  -- sizes: how many nodes are in each state.
  local function sizes(ctx)
    local held = 0
    for _, name in ipairs((route.held(ctx))) do held = held + waiting.held(ctx, name) end
    local function size(key) return number(pcall_redis('ZCARD', key)) end
    return { 'due', size(ctx.k.schedule), 'share', max(0, number(pcall_redis('HLEN', ctx.k.waiting)) - held), 'slots',
      size(ctx.k.full),
      'held', held, 'paused', size(ctx.k.paused), 'refused', size(ctx.k.refused), 'retrying', size(ctx.k.retries) }
  end

  -- overdue: how long the first node of each state has been due, in us.
  local function overdue(ctx)
    local function late(key)
      local first = pcall_redis('ZRANGE', key, '0', '0', 'WITHSCORES')
      return not first.err and first[2] and max(0, ctx.now - first[2]) or 0
    end
    local held = 0
    for _, name in ipairs((route.held(ctx))) do
      for _, one in ipairs(waiting.front(ctx, waiting.route_key(ctx, name), HELD_READ)) do
        held = max(held, ctx.now - one.due)
      end
    end
    return { 'due', digits(late(ctx.k.schedule)), 'slots', digits(late(ctx.k.full)), 'held', digits(held),
      'paused', digits(late(ctx.k.paused)), 'refused', digits(late(ctx.k.refused)) }
  end

  -- in_stream: of a ready stream the number of undelivered entries, of entries with workers, and of all entries, and
  -- the age of the oldest undelivered one in ms.
  local function in_stream(ctx, name)
    local found = route.look_at_stream(ctx, name)
    if found.wrong then return nil end
    local oldest, group = 0, found.group
    if found.oldest then oldest = max(0, floor(ctx.now / 1000) - match(found.oldest[1], '^%d+')) end
    return found.ready, group and group.pending or 0, call('XLEN', found.stream), oldest
  end

  -- of_routes: the same for each route. For a route that forwards: the length of its list, and what is left in its
  -- stream from before it forwarded.
  local function of_routes(ctx)
    local list = {}
    local known, has_stream = routes.names(ctx)
    for _, name in ipairs(known) do
      local ready, pending, entries, oldest
      if has_stream[name] then ready, pending, entries, oldest = in_stream(ctx, name) end
      if forward.of(ctx.rec, name) then ready = (ready or 0) + route.look(ctx, name).ready end
      if ready then base.append(list, name, ready, pending or 0, entries or 0, oldest or 0) end
    end
    return list
  end

  -- set_things: how many names and globs have settings, and how many nodes a slow-down or a told limit.
  local function set_things(ctx)
    local function size(key) return number(pcall_redis('HLEN', key)) end
    return { 'name', size(ctx.k.settings), 'glob', #(ctx.rec.all_globs or {}), 'slow', size(ctx.k.slow), 'told',
      size(ctx.k.told) }
  end

  -- drip__figures: the figures of a prefix.
  -- keys   <prefix>:policy
  -- args   now_us
  -- reply  { now_us (a text), counters, sizes, overdue in us, settings by kind (each of these: name, figure, ...),
  --          { route, undelivered, with workers, entries, ms of the oldest that is undelivered, ... },
  --          { name, figure, ... }: rejected and dead (entries of those streams), delayed (jobs), daemons, and budgets:
  --          how many of the nodes with work are budgets }
  -- errors WRONGTYPE: no daemon says that it runs, and here is a key that none gets past
  -- cost   O(routes, daemons, held routes)
  function figures.read(ctx)
    local living = number(daemons.count(ctx.k.daemons, ctx.now))
    if living == 0 then
      local key, wanted = keys.of_wrong_type(ctx.space)
      if key then return base.wrong_type(key, wanted) end
    end
    return { ctx.now_text, counters(ctx), sizes(ctx), overdue(ctx), set_things(ctx), of_routes(ctx),
      { 'rejected', number(pcall_redis('XLEN', ctx.k.rejected)), 'dead', number(pcall_redis('XLEN', ctx.k.dead)),
        'delayed', delayed.in_all(ctx),
        'daemons', living, 'budgets', number(pcall_redis('HLEN', ctx.k.budgets)) } }
  end
end
