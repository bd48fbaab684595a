-- Waiting sets: the children of a budget that could go and that something above keeps from going, in the order of their turns.
--
-- <prefix>:wait:<budget> is sorted by the end of a child's next job (31_share); its members are the due in 16 digits and the child's
-- id, for Redis breaks ties by name and the earlier due goes first. <prefix>:waiting says of each child where it waits and with
-- which due. What a call changes is written at its end (`flush`), and read before as if it were.

local waiting = {}
do
  local FIRST_PAGE = 4     -- children that are read at first, for many calls serve few; then four times as many each time
  local PAGE = 100         -- and at most so many at once
  local AGAIN_US = 1000000 -- where a set cannot be written, its children are looked at again later

  local function member_of(id, due)
    return format('%016.0f', due) .. id
  end

  -- key: the set of a budget. budget: the id of the budget that a set belongs to, or nil for any other place.
  function waiting.key(ctx, parent)
    return ctx.k.wait .. chain.budget_of(parent)
  end

  function waiting.budget(ctx, place)
    local head = ctx.k.wait
    if place and sub(place, 1, #head) == head then return chain.id_of(sub(place, #head + 1)) end
  end

  local function set_of(ctx, key)
    ctx.waits = ctx.waits or {}
    local set = ctx.waits[key]
    if not set then
      set = { key = key, changes = {}, changed = false }
      ctx.waits[key] = set
    end
    return set
  end

  -- is_before: the order of Redis.
  local function is_before(a, b)
    if a.ends ~= b.ends then return a.ends < b.ends end
    return a.member < b.member
  end

  -- insert: a child into the part of a set that was read; what comes behind that part is read later.
  local function insert(set, one)
    local list = set.list
    if not list or set.bound and not is_before(one, set.bound) then return end
    local low, high = 1, #list + 1
    while low < high do
      local middle = floor((low + high) / 2)
      if is_before(one, list[middle]) then high = middle else low = middle + 1 end
    end
    table.insert(list, low, one)
  end

  local function remove(set, member)
    for i, one in ipairs(set.list or {}) do
      if one.member == member then
        table.remove(set.list, i)
        return
      end
    end
  end

  local function note_place(ctx, id, text)
    ctx.waiting_at = ctx.waiting_at or {}
    ctx.waiting_at[id] = text
  end

  -- join: a child waits in a set from now on.
  function waiting.join(ctx, key, id, due, ends)
    local set, member = set_of(ctx, key), member_of(id, due)
    set.changes[member], set.changed = ends, true
    insert(set, { id = id, due = due, ends = ends, member = member })
    note_place(ctx, id, format('%016.0f ', due) .. sub(key, #ctx.k.wait + 1))
  end

  -- leave: it waits there no more.
  function waiting.leave(ctx, key, id, due)
    local set, member = set_of(ctx, key), member_of(id, due)
    set.changes[member], set.changed = false, true
    remove(set, member)
    note_place(ctx, id, false)
  end

  -- flush_set: write what changed of one set.
  local function flush_set(ctx, set)
    local add, gone = {}, {}
    for member, ends in pairs(set.changes) do
      if ends then
        add[#add + 1], add[#add + 2] = format('%.17g', ends), member
      else
        gone[#gone + 1] = member
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
    local add, gone = {}, {}
    for id, text in pairs(ctx.waiting_at) do
      if text then add[#add + 1], add[#add + 2] = id, text else gone[#gone + 1] = id end
    end
    ctx.waiting_at = false
    local failed = gone[1] and base.is_error(pcall_redis('HDEL', ctx.k.waiting, unpack(gone)))
    failed = add[1] and base.is_error(pcall_redis('HSET', ctx.k.waiting, unpack(add))) or failed
    if failed then context.note(ctx, 'wrong-type', ctx.k.waiting) end
  end

  -- read: a part of a set, from its front.
  local function read(ctx, set)
    if set.changed then flush_set(ctx, set) end
    local most = min(PAGE, set.page and 4 * set.page or FIRST_PAGE)
    local found = pcall_redis('ZRANGE', set.key, '0', most - 1, 'WITHSCORES')
    set.list, set.bound, set.page = {}, nil, most
    if found.err then return context.note(ctx, 'wrong-type', set.key) end
    for i = 1, #found, 2 do
      local member = found[i]
      set.list[#set.list + 1] = { member = member, ends = found[i + 1] + 0, due = sub(member, 1, 16) + 0, id = sub(member, 17) }
    end
    if #set.list == most then set.bound = set.list[most] end
  end

  -- first: the child whose turn it is, { id, due, ends }, or nil. It stays where it is.
  function waiting.first(ctx, key)
    local set = set_of(ctx, key)
    if not set.list or #set.list == 0 and set.bound then read(ctx, set) end
    return set.list[1]
  end

  -- count: how many wait, at least.
  function waiting.count(ctx, key)
    local set = set_of(ctx, key)
    if set.list and not set.bound then return #set.list end
    if set.changed then flush_set(ctx, set) end
    return call('ZCARD', key)
  end

  -- decode: where a child waits, and with which due, from its text in <prefix>:waiting.
  function waiting.decode(ctx, text)
    return ctx.k.wait .. sub(text, 18), sub(text, 1, 16) + 0
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
    local found = pcall_redis('HMGET', ctx.k.waiting, unpack(ids))
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
    return call('ZRANK', key, member_of(id, due)) or 0
  end

  -- ends_of: the end with which a child waits.
  function waiting.ends_of(ctx, key, id, due)
    local set, member = set_of(ctx, key), member_of(id, due)
    local ends = set.changes[member]
    if ends == nil then ends = tonumber(call('ZSCORE', key, member) or nil) end
    return ends or nil
  end
end
