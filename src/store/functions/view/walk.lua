-- needs: base, base.keys, context, context.memory, limits.constraint_store, limits.constraints, policy.record,
--   queue.rejecting, state, state.bucket, state.waiting, tree.budget, view.rows
-- The walk: it reads every bucket, a page a call, for the ranking that `dripd status` and `dripd top` show. One daemon
-- calls, and rests between two pages. It keeps the first buckets of each order, and stores the ranking here at the end.
--
-- The orders rank buckets by (`budgets` ranks budgets by how many nodes wait for a share of each)
--   empty     how long until the bucket is empty, at its rate        depth     how many jobs wait
--   late      how long its next job has been due                     rejected  how many of its jobs were rejected
--             lately (queue/rejecting)
-- The ranking is in the memory of this server: in Redis it would grow the append-only file by megabytes a minute.
--
-- The rows are those of view/rows, without retries. A pause and a full route are taken to end now, as in the replies to
-- pushes (queue/push). How long a slow-down, a quota, a told limit or the cost of the last job holds a bucket, or a
-- budget above it, counts as it is. The row of a budget has its id, its state, how many nodes wait for a share of it
-- instead of the depth, and its rate (0: it has none).

local walk = {}
do
  local refuse, is_error, digits, integer = base.refuse, base.is_error, base.digits, base.integer
  local glance, empty_ms, add, waits_at = record.glance, rows.empty_ms, rows.add, rows.waits_at

  local PAGE_MOST = 1000
  local PLACES_MOST = 16 -- sets that one call reads
  local PARTS_MOST = 50 -- of a ranking
  local PART_BYTES = 131072
  local KEPT_US = 86400000000 -- a ranking is of no use after a day

  local ORDERS = { empty = true, depth = true, late = true, rejected = true, budgets = true }

  -- next_place: the next set to read, in this order: paused, full, waits (queued or held), due, rejected; nil after the
  -- last.
  local function next_place(ctx, at)
    if at == 'paused' and ctx.may_be_full then return 'full' end
    if at == 'paused' or at == 'full' then return (ctx.has_budgets or ctx.held ~= '') and 'waits' or 'due' end
    if at == 'waits' then return 'due' end
    if at == 'due' then return 'rejected' end
  end

  -- by_constraint: the due of a bucket with this constraint, if any: the same steps as in `bucket.decide`. A due
  -- further ahead than its last job was charged is from before the clock stepped back, and a drain reconciles it.
  local function by_constraint(ctx, p, constraint, due)
    if not constraint then return min(due, ctx.now + p.interval_us) end
    due = min(constraint.pace or due, ctx.now + constraints.max_ahead_us(constraint, p))
    return constraints.hold(ctx, constraint, p, due)
  end

  -- by_budgets: the latest due of the budgets above a bucket that lies in the future, or 0.
  local function by_budgets(ctx, parent)
    local latest = 0
    for _, b in ipairs(budget.ancestors(ctx, parent)) do
      local due = budget.known_due(ctx, b)
      if due and due > ctx.now then latest = max(latest, due) end
    end
    return latest
  end

  -- due_of: when the next job of a bucket may leave, as far as time decides it, and how late it is; and its constraint,
  -- if any.
  local function due_of(ctx, p, name, waits, due)
    local now, constraint = ctx.now, constraints.of(ctx, name, p)
    due = by_constraint(ctx, p, constraint, due)
    if p.parent and not p.refused and constraint_store.is_any(ctx) then due = max(due, by_budgets(ctx, p.parent)) end
    if due >= now then return due, 0, constraint end
    if waits == 'due' then return due, now - due, constraint end
    return now, 0, constraint
  end

  -- expect: these nodes are looked at next: read at once what may hold them.
  local function expect(ctx, ids)
    if ctx.rec.version then record.expect(ctx.rec, ids, true) end
    constraints.expect(ctx, ids)
    if not ctx.has_budgets or not constraint_store.is_any(ctx) then return end
    local parents, seen = {}, {}
    for _, id in ipairs(ids) do
      local p = glance(ctx.rec, id)
      local parent = p and not p.refused and p.parent
      if parent and not seen[parent] then seen[parent], parents[#parents + 1] = true, parent end
    end
    budget.expect(ctx, parents)
  end

  -- page_of_place: read a page of a set of nodes. Replies the next cursor, '0' at its end, the number of nodes, and how
  -- many of those are buckets. Few buckets exceed a floor, so what only their rows need is computed after that
  -- comparison.
  local function page_of_place(ctx, at, cursor, most, floors, list)
    local key, waits = at == 'due' and ctx.k.schedule or at == 'full' and ctx.k.full or ctx.k.paused, at
    local page
    if at == 'waits' then
      page = pcall_redis('HSCAN', ctx.k.waiting, cursor, 'COUNT', most)
    else
      page = pcall_redis('ZSCAN', key, cursor, 'COUNT', most)
    end
    if is_error(page) then return '0', 0, 0 end
    local found, rec, now, queues, pair = page[2], ctx.rec, ctx.now, ctx.k.queues, rejecting.now_in(ctx)
    local policy, least_depth, least_empty, least_late = rec.plain, floors.depth, floors.empty, floors.late
    local buckets = #found / 2
    if not policy or constraint_store.is_any(ctx) then expect(ctx, base.names_in(found)) end
    for i = 1, #found, 2 do
      local name = found[i]
      local is_budget = byte(name, 1) == 123
      if is_budget then buckets = buckets - 1 end
      local len, p =
        is_budget and 0 or pcall_redis('LLEN', queues .. name), not is_budget and policy or glance(rec, name)
      if type(len) ~= 'number' then len = 0 end -- of the wrong type: a drain notes it
      local due, late, constraint = now, 0, nil
      if at == 'waits' then waits = waiting.word(found[i + 1]) end
      if not is_budget then due, late, constraint = due_of(ctx, p, name, waits, sub(found[i + 1], 1, 16) + 0) end
      local empty = len > 0 and empty_ms(p, constraint, due, now, len) or 0
      if len > least_depth or late > least_late or len > 0 and empty > least_empty then
        add(list, ctx, p, name, waits, due, len, empty, late, pair and rejecting.of(pair, name) or 0)
      elseif is_budget and floors.waiting then
        local sharing = budget.waiting(ctx, budget.get(ctx, name))
        if sharing > floors.waiting then add(list, ctx, p or {}, name, waits, now, sharing, 0, 0, 0) end
      end
    end
    return page[1], #found / 2, buckets
  end

  -- page_of_rejected: a page of the buckets that reject jobs, whatever their state.
  local function page_of_rejected(ctx, cursor, most, floors, list)
    local names, counts, on = rejecting.page(ctx, max(1, integer(cursor) or 1), most, floors.rejected)
    local states, dues = state.load(ctx, names)
    expect(ctx, names)
    for i, name in ipairs(names) do
      local waits = waits_at(ctx, states[i])
      local len, p = bucket.length_of(ctx, ctx.k.queues .. name) or 0, glance(ctx.rec, name)
      local due, late, constraint = due_of(ctx, p, name, waits, dues[i] or ctx.now)
      local empty = len > 0 and empty_ms(p, constraint, due, ctx.now, len) or 0
      add(list, ctx, p, name, waits, due, len, empty, late, counts[i])
    end
    return on and digits(on) or '0'
  end

  -- drip__walk: a page of the walk.
  -- keys   <prefix>:policy
  -- args   now_us, set and cursor of this page ('' '' = from the beginning), about how many nodes at most, and five
  --        floors: rows that exceed none are left out: depth, ms until empty, us late, rejected jobs, nodes that wait
  --        for a share of a budget (absent: no rows of budgets)
  -- reply  { set and cursor of the next page ('' '' = that was all), now, number of buckets, rows that may rank by
  --        depth, empty or late, and those of budgets; rows that may rank by rejected }
  -- cost   O(how many)
  function walk.page(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    local most = base.whole(args[4], 1, PAGE_MOST)
    if not space or not most then
      return refuse('BADARG', 'walk takes the policy key, a place, a cursor, how many (1 to 1000), and four floors')
    end
    local floors = {
      depth = tonumber(args[5]) or 0, empty = tonumber(args[6]) or -1, late = tonumber(args[7]) or 0,
      rejected = tonumber(args[8]) or 0,
      waiting = tonumber(args[9] or ''),
    }
    local ctx, at, cursor = context.open(space, args[1]), args[2], args[3]
    if at == '' then at, cursor = 'paused', '0' end
    local passed, buckets, list, rejecting_rows = 0, 0, {}, {}
    for _ = 1, PLACES_MOST do
      if not at or passed >= most then break end
      if at == 'rejected' then
        cursor = page_of_rejected(ctx, cursor, most, floors, rejecting_rows)
      else
        local n, k
        cursor, n, k = page_of_place(ctx, at, cursor, most, floors, list)
        passed, buckets = passed + n, buckets + k
      end
      if cursor ~= '0' then break end
      at = next_place(ctx, at)
    end
    return { at or '', at and cursor or '', ctx.now_text, buckets, list, rejecting_rows }
  end

  -- drip__rank: keep a ranking, instead of the last one.
  -- keys   <prefix>:policy
  -- args   now_us, when its walk began, how long that took in us, how many buckets it read, then its parts: order, rows
  --        (a text that only the daemons read), ...; the parts of an order one after the other
  -- reply  1
  -- errors BADARG
  -- cost   O(bytes)
  function walk.rank(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    local as_of, took, buckets = integer(args[2]), integer(args[3]), integer(args[4])
    local good, orders = space and as_of and took and buckets and #args % 2 == 0 and #args <= 4 + 2 * PARTS_MOST, {}
    for i = 5, #args - 1, 2 do
      good = good and ORDERS[args[i]] and #args[i + 1] <= PART_BYTES
      local parts = orders[args[i]] or {}
      orders[args[i]], parts[#parts + 1] = parts, args[i + 1]
    end
    if not good then return refuse('BADARG', 'rank takes the policy key, three numbers and parts of orders') end
    local m = context.open(space, args[1]).memory
    memory.holds_much(m)
    m.top = { as_of = as_of, took = took, buckets = buckets, orders = orders }
    return 1
  end

  -- drip__top: the ranking that is kept.
  -- keys   <prefix>:policy
  -- args   now_us, how many parts of an order at most, order ...
  -- reply  { when its walk began, its age in us, how long it took in us, how many buckets it read, { part, ... } of
  --        each order }; { } where none is kept, or one that is older than a day
  -- cost   O(bytes)
  function walk.top(redis_keys, args)
    local space, most = keys.space_before(redis_keys[1], 'policy'), integer(args[2])
    if not space or not most then return refuse('BADARG', 'top takes the policy key, how many parts, and orders') end
    local ctx = context.open(space, args[1])
    local top = ctx.memory.top
    if not top or ctx.now - top.as_of > KEPT_US then return {} end
    local reply = { digits(top.as_of), digits(max(0, ctx.now - top.as_of)), digits(top.took), top.buckets }
    for i = 3, #args do
      local parts = {}
      for n, part in ipairs(top.orders[args[i]] or {}) do
        if n > most then break end
        parts[n] = part
      end
      reply[#reply + 1] = parts
    end
    return reply
  end
end
