-- needs: base, base.call, policy.chain
-- Waiting sets: nodes that could go and that take turns at something, in the order of their turns:
--   <prefix>:wait:<budget>    the children of a budget that something above keeps from going, by the end of a child's next job (tree/share)
--   <prefix>:wait:{<route>}   the buckets that are held for a route, by when the last job of each left (route/room)
-- The members are the due in 16 digits and the node's id, for Redis breaks ties by name and the earlier due goes first. <prefix>:waiting
-- says of each node where it waits and with which due. What a call changes is written at its end (`flush`), and read before as if it
-- were.

local waiting = {}
do
  local FIRST_PAGE = 4     -- children that are read at first, at least
  local PAGE = 100         -- and at most so many at once
  local AGAIN_US = 1000000 -- where a set cannot be written, its children are looked at again later
  local OPENS = 123        -- the byte with which the name of a route begins here

  local padded, exact = base.padded, base.exact

  -- The end of a child whose next job found too little left of a quota: before all others, whose ends are above -1, for nothing overtakes
  -- that job. What it pays follows its own end.
  waiting.FRONT = -2

  -- later: the end of a child that has its turn so much later.
  function waiting.later(ends, step)
    return ends == waiting.FRONT and ends or ends + step
  end

  -- key: the set of a budget. budget: the id of the budget that a set belongs to, or nil for any other place.
  function waiting.key(ctx, parent)
    return ctx.k.wait .. chain.budget_of(parent)
  end

  function waiting.budget(ctx, place)
    local head = ctx.k.wait
    if place and sub(place, 1, #head) == head and byte(place, #head + 1) ~= OPENS then return chain.id_of(sub(place, #head + 1)) end
  end

  -- route_key: the set of a route. route: the name of the route that a set belongs to, or nil for any other place. (No budget's name begins with
  -- a brace.)
  function waiting.route_key(ctx, name)
    return ctx.k.wait .. '{' .. name .. '}'
  end

  function waiting.route(ctx, place)
    local head = ctx.k.wait
    if place and byte(place, #head + 1) == OPENS and sub(place, 1, #head) == head then return sub(place, #head + 2, -2) end
  end

  -- is_set: whether a place is a waiting set at all.
  function waiting.is_set(ctx, place)
    local head = ctx.k.wait
    return place ~= nil and sub(place, 1, #head) == head
  end

  -- set_of: a set in this call: `changes` are what it has to write, member -> end, or false for one that leaves. `list` is the part that was
  -- read, from the front of the set, the first child last; where it is not all, it ends with `bound`.
  local function set_of(ctx, key)
    local sets = ctx.waits
    if not sets then
      sets = {}
      ctx.waits = sets
    end
    local set = sets[key]
    if not set then
      set = { key = key, of = sub(key, #ctx.k.wait + 1), changes = {}, changed = false, list = nil, bound = nil, page = nil }
      sets[key] = set
    end
    return set
  end

  -- is_before: whether a child with this end and member comes before another one, in the order of Redis.
  local function is_before(ends, member, other)
    if ends ~= other.ends then return ends < other.ends end
    return member < other.member
  end

  -- insert: a child into the part of a set that was read.
  local function insert(list, one)
    local low, high = 1, #list + 1
    while low < high do
      local middle = floor((low + high) / 2)
      if is_before(one.ends, one.member, list[middle]) then low = middle + 1 else high = middle end
    end
    table.insert(list, low, one)
  end

  local function remove(set, member)
    local list = set.list or {}
    for i = #list, 1, -1 do
      if list[i].member == member then
        table.remove(list, i)
        return
      end
    end
  end

  -- note_place: where a child waits, as <prefix>:waiting has it; false: it waits no more.
  local function note_place(ctx, id, text)
    local at = ctx.waiting_at
    if not at then
      at = {}
      ctx.waiting_at = at
    end
    at[id] = text
  end

  -- put: a child waits in a set from now on. What comes behind the part that was read is read later.
  local due_before, at_before -- many have the same due

  local function put(ctx, set, id, due, ends)
    local list, bound = set.list, set.bound
    if due ~= due_before then due_before, at_before = due, padded(due) end
    local at = at_before
    local member = at .. id
    set.changes[member], set.changed = ends, true
    if list and (not bound or is_before(ends, member, bound)) then
      insert(list, { id = id, due = due, ends = ends, member = member })
    end
    note_place(ctx, id, at .. ' ' .. set.of)
  end

  -- join: a child waits in a set from now on. leave: it waits there no more.
  function waiting.join(ctx, key, id, due, ends)
    put(ctx, set_of(ctx, key), id, due, ends)
  end

  function waiting.leave(ctx, key, id, due)
    local set, member = set_of(ctx, key), padded(due) .. id
    set.changes[member], set.changed = false, true
    remove(set, member)
    note_place(ctx, id, false)
  end

  -- served: the first child of a set had its turn, and waits for the next one with this due and end; without them it waits no more.
  function waiting.served(ctx, key, one, due, ends)
    local set = set_of(ctx, key)
    local list = set.list
    set.changes[one.member], set.changed, list[#list] = false, true, nil
    if ends then return put(ctx, set, one.id, due, ends) end
    note_place(ctx, one.id, false)
  end

  -- flush_set: write what changed of one set.
  local function flush_set(ctx, set)
    local add, gone, added, left, ends_before, ends_text = {}, {}, 0, 0, nil, nil
    for member, ends in pairs(set.changes) do
      if ends then
        if ends ~= ends_before then ends_before, ends_text = ends, exact(ends) end -- many have the same
        add[added + 1], add[added + 2] = ends_text, member
        added = added + 2
      else
        left = left + 1
        gone[left] = member
      end
    end
    set.changes, set.changed = {}, false
    if gone[1] then pcall_redis('ZREM', set.key, unpack(gone)) end
    if not add[1] or not base.is_error(pcall_redis('ZADD', set.key, unpack(add))) then return end
    context.note(ctx, 'wrong-type', set.key)
    for i = 2, #add, 2 do
      local id = sub(add[i], 17)
      call('ZADD', ctx.k.schedule, base.digits(ctx.now + AGAIN_US), id) -- they come again
      note_place(ctx, id, false)
    end
  end

  -- flush: write what the call changed.
  -- writes  waiting sets, waiting      cost  at most 2 calls a set, and 2
  function waiting.flush(ctx)
    for _, set in pairs(ctx.waits or {}) do
      if set.changed then flush_set(ctx, set) end
    end
    if not ctx.waiting_at then return end
    local add, gone, added = {}, {}, 0
    for id, text in pairs(ctx.waiting_at) do
      if text then
        add[added + 1], add[added + 2] = id, text
        added = added + 2
      else
        gone[#gone + 1] = id
      end
    end
    ctx.waiting_at = false
    local failed = base.write(pcall_redis, 'HDEL', ctx.k.waiting, gone)
    failed = base.write(pcall_redis, 'HSET', ctx.k.waiting, add) or failed
    if failed then context.note(ctx, 'wrong-type', ctx.k.waiting) end
  end

  -- read: a part of a set, from its front: at first so many children as are wanted, and one more, then four times as many each time.
  local function read(ctx, set, wanted)
    if set.changed then flush_set(ctx, set) end
    local most = min(PAGE, max(FIRST_PAGE, set.page and 4 * set.page or wanted + 1))
    local found = pcall_redis('ZRANGE', set.key, '0', most - 1, 'WITHSCORES')
    local list = {}
    set.list, set.bound, set.page = list, nil, most
    if found.err then return context.note(ctx, 'wrong-type', set.key) end
    local n, text, ends = 0, nil, nil
    for i = #found - 1, 1, -2 do
      local member = found[i]
      if found[i + 1] ~= text then
        text = found[i + 1]
        ends = text + 0
      end
      n = n + 1
      list[n] = { member = member, ends = ends, due = sub(member, 1, 16) + 0, id = sub(member, 17) }
    end
    if n == most then set.bound = list[1] end
  end

  -- first: the child whose turn it is, { id, due, ends }, or nil. It stays where it is. `wanted` says how many are to be served.
  function waiting.first(ctx, key, wanted)
    local set = set_of(ctx, key)
    local list = set.list
    if not list or not list[1] and set.bound then
      read(ctx, set, wanted or 1)
      list = set.list
    end
    return list[#list]
  end

  -- front: the first nodes of a set, at most so many, in the order of their turns.
  function waiting.front(ctx, key, most)
    local set, list = set_of(ctx, key), {}
    if set.changed then flush_set(ctx, set) end
    local found = pcall_redis('ZRANGE', key, '0', most - 1, 'WITHSCORES')
    if found.err then
      context.note(ctx, 'wrong-type', key)
      return list
    end
    for i = 1, #found, 2 do
      local member = found[i]
      list[#list + 1] = { id = sub(member, 17), due = sub(member, 1, 16) + 0, ends = found[i + 1] + 0 }
    end
    return list
  end

  -- count: how many wait, at least.
  function waiting.count(ctx, key)
    local set = set_of(ctx, key)
    if set.list and not set.bound then return #set.list end
    if set.changed then flush_set(ctx, set) end
    local n = pcall_redis('ZCARD', key)
    return base.is_error(n) and 0 or n
  end

  -- decode: where a child waits, and with which due, from its text in <prefix>:waiting.
  function waiting.decode(ctx, text)
    return ctx.k.wait .. sub(text, 18), sub(text, 1, 16) + 0
  end

  -- word: for what a node waits, by the same text: 'share' or 'held'.
  function waiting.word(text)
    return byte(text, 18) == OPENS and 'held' or 'share'
  end

  -- page: a page of all that waits, for the sweep: ids, dues, where it goes on, and places.
  function waiting.page(ctx, cursor)
    local page, ids, dues, places = call('HSCAN', ctx.k.waiting, cursor, 'COUNT', ctx.page), {}, {}, {}
    for i = 1, #page[2], 2 do
      local n = #ids + 1
      ids[n] = page[2][i]
      places[n], dues[n] = waiting.decode(ctx, page[2][i + 1])
    end
    return ids, dues, page[1], places
  end

  -- places: the texts of some children in <prefix>:waiting, false for those that wait nowhere.
  function waiting.places(ctx, ids)
    local found = base.seen(pcall_redis('HMGET', ctx.k.waiting, unpack(ids)))
    if found.err then return {} end
    local at = ctx.waiting_at
    if at then
      for i, id in ipairs(ids) do
        if at[id] ~= nil then found[i] = at[id] end
      end
    end
    return found
  end

  -- ahead: how many children go before one.
  function waiting.ahead(ctx, key, id, due)
    local set = set_of(ctx, key)
    if set.changed then flush_set(ctx, set) end
    return call('ZRANK', key, padded(due) .. id) or 0
  end

  -- ends_of: the end with which a child waits.
  function waiting.ends_of(ctx, key, id, due)
    local set, member = set_of(ctx, key), padded(due) .. id
    local ends = set.changes[member]
    if ends == nil then ends = tonumber(call('ZSCORE', key, member) or nil) end
    return ends or nil
  end
end
