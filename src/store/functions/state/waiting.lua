-- needs: base, context, policy.chain, route, route.room
-- Waiting sets: nodes that are due and take turns, ordered by rank (the score):
--   <prefix>:wait:<budget>    children of a budget that it does not admit yet; the rank is the finish tag of the next
--                             job (pace/share)
--   <prefix>:wait:{<route>}   buckets held for a route; the rank is when the last job of each left (route/room)
-- A member is the due in 16 digits and the node's id: Redis orders equal scores by member, so the earlier due goes
-- first. The hash <prefix>:waiting has the set and the due of each waiting node. A call writes its changes at its end
-- (`flush`). Reads of the same call already see them.

local waiting = {}
do
  local FIRST_PAGE = 4 -- children that the first read of a set fetches, at least
  local PAGE = 100 -- children that one read fetches, at most
  local AGAIN_US = 1000000 -- when the children of a set that cannot be written are tried again
  local OPENS = 123 -- the byte `{`: the name of a route begins with it here

  local padded, exact = base.padded, base.exact

  -- The rank of a child whose next job found too little left of a quota. All other ranks are above -1, so nothing
  -- overtakes that job. The job is charged by its real finish tag.
  waiting.FRONT = -2

  -- shifted: the rank of a child whose turn is moved by `step`. The rank FRONT does not move.
  function waiting.shifted(rank, step)
    return rank == waiting.FRONT and rank or rank + step
  end

  -- key: the key of the waiting set of a budget.
  -- budget: the id of the budget that a waiting set belongs to, nil for any other state.
  function waiting.key(ctx, parent)
    return ctx.k.wait .. chain.budget_of(parent)
  end

  function waiting.budget(ctx, from)
    local head = ctx.k.wait
    if from and sub(from, 1, #head) == head and byte(from, #head + 1) ~= OPENS then
      return chain.id_of(sub(from, #head + 1))
    end
  end

  -- route_key: the key of the waiting set of a route.
  -- route: the name of the route that a waiting set belongs to, nil for any other state. (No budget's name begins with
  -- a brace.)
  function waiting.route_key(ctx, name)
    return ctx.k.wait .. '{' .. name .. '}'
  end

  function waiting.route(ctx, from)
    local head = ctx.k.wait
    if from and byte(from, #head + 1) == OPENS and sub(from, 1, #head) == head then return sub(from, #head + 2, -2) end
  end

  -- is_set: whether a state is a waiting set.
  function waiting.is_set(ctx, from)
    local head = ctx.k.wait
    return from ~= nil and sub(from, 1, #head) == head
  end

  -- set_of: what this call knows of a waiting set. `changes` is what it has to write: member -> rank, or false for a
  -- member to remove. `list` is what was read from the front of the set, the first child last. Where more follows in
  -- Redis, `bound` is the last child that was read.
  local function set_of(ctx, key)
    local sets = ctx.waits
    if not sets then
      sets = {}
      ctx.waits = sets
    end
    local set = sets[key]
    if not set then
      set = {
        key = key,
        of = sub(key, #ctx.k.wait + 1),
        changes = {},
        changed = false,
        list = nil,
        bound = nil,
        page = nil,
      }
      sets[key] = set
    end
    return set
  end

  -- is_before: whether a child with this rank and member is ordered before another one, as Redis orders them.
  local function is_before(rank, member, other)
    if rank ~= other.rank then return rank < other.rank end
    return member < other.member
  end

  -- insert: add a child to the part of a set that was read.
  local function insert(list, one)
    local low, high = 1, #list + 1
    while low < high do
      local middle = floor((low + high) / 2)
      if is_before(one.rank, one.member, list[middle]) then low = middle + 1 else high = middle end
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

  -- note_state: note the text of a child in <prefix>:waiting; false: the child is removed from it.
  local function note_state(ctx, id, text)
    local at = ctx.waiting_at
    if not at then
      at = {}
      ctx.waiting_at = at
    end
    at[id] = text
  end

  -- put: a child joins a set. A child behind the part that was read is not added to it: a later read finds it.
  local due_before, at_before -- many children have the same due

  local function put(ctx, set, id, due, rank)
    local list, bound = set.list, set.bound
    if due ~= due_before then due_before, at_before = due, padded(due) end
    local at = at_before
    local member = at .. id
    set.changes[member], set.changed = rank, true
    if list and (not bound or is_before(rank, member, bound)) then
      insert(list, { id = id, due = due, rank = rank, member = member })
    end
    note_state(ctx, id, at .. ' ' .. set.of)
  end

  -- join: a child joins a waiting set.
  -- leave: a child leaves a waiting set.
  function waiting.join(ctx, key, id, due, rank)
    put(ctx, set_of(ctx, key), id, due, rank)
  end

  function waiting.leave(ctx, key, id, due)
    local set, member = set_of(ctx, key), padded(due) .. id
    set.changes[member], set.changed = false, true
    remove(set, member)
    note_state(ctx, id, false)
  end

  -- served: the first child of a set had its turn. It waits for its next turn with this due and rank; without them it
  -- leaves the set.
  function waiting.served(ctx, key, one, due, rank)
    local set = set_of(ctx, key)
    local list = set.list
    set.changes[one.member], set.changed, list[#list] = false, true, nil
    if rank then return put(ctx, set, one.id, due, rank) end
    note_state(ctx, one.id, false)
  end

  -- flush_set: write the changes of one set.
  local function flush_set(ctx, set)
    local add, gone, added, left, rank_before, rank_text = {}, {}, 0, 0, nil, nil
    for member, rank in pairs(set.changes) do
      if rank then
        if rank ~= rank_before then rank_before, rank_text = rank, exact(rank) end -- many children have the same rank
        add[added + 1], add[added + 2] = rank_text, member
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
      call('ZADD', ctx.k.schedule, base.digits(ctx.now + AGAIN_US), id) -- they come due again
      note_state(ctx, id, false)
    end
  end

  -- flush: write the changes of this call.
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

  -- read: read the front of a set. The first read fetches the wanted number of children and one more, each later read
  -- four times as many as the one before.
  local function read(ctx, set, wanted)
    if set.changed then flush_set(ctx, set) end
    local most = min(PAGE, max(FIRST_PAGE, set.page and 4 * set.page or wanted + 1))
    local found = pcall_redis('ZRANGE', set.key, '0', most - 1, 'WITHSCORES')
    local list = {}
    set.list, set.bound, set.page = list, nil, most
    if found.err then return context.note(ctx, 'wrong-type', set.key) end
    local n, text, rank = 0, nil, nil
    for i = #found - 1, 1, -2 do
      local member = found[i]
      if found[i + 1] ~= text then
        text = found[i + 1]
        rank = text + 0
      end
      n = n + 1
      list[n] = { member = member, rank = rank, due = sub(member, 1, 16) + 0, id = sub(member, 17) }
    end
    if n == most then set.bound = list[1] end
  end

  -- first: the child whose turn is next, { id, due, rank, member }, or nil. It stays in the set. `wanted` is how many
  -- children are to be served.
  function waiting.first(ctx, key, wanted)
    local set = set_of(ctx, key)
    local list = set.list
    if not list or not list[1] and set.bound then
      read(ctx, set, wanted or 1)
      list = set.list
    end
    return list[#list]
  end

  -- front: the first nodes of a set, at most `most`, in the order of their turns.
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
      list[#list + 1] = { id = sub(member, 17), due = sub(member, 1, 16) + 0, rank = found[i + 1] + 0 }
    end
    return list
  end

  -- count: how many children wait in a set; 0 where it cannot be read.
  function waiting.count(ctx, key)
    local set = set_of(ctx, key)
    if set.list and not set.bound then return #set.list end
    if set.changed then flush_set(ctx, set) end
    return base.number(pcall_redis('ZCARD', key))
  end

  -- decode: the set in which a child waits, and its due there, from its text in <prefix>:waiting.
  function waiting.decode(ctx, text)
    return ctx.k.wait .. sub(text, 18), sub(text, 1, 16) + 0
  end

  -- word: what a node with this text in <prefix>:waiting waits for: 'share' or 'held'.
  function waiting.word(text)
    return byte(text, 18) == OPENS and 'held' or 'share'
  end

  -- page: one page of all waiting nodes, for the sweep: ids, dues, the next cursor, and states.
  function waiting.page(ctx, cursor)
    local page, ids, dues, states = call('HSCAN', ctx.k.waiting, cursor, 'COUNT', ctx.page), {}, {}, {}
    for i = 1, #page[2], 2 do
      local n = #ids + 1
      ids[n] = page[2][i]
      states[n], dues[n] = waiting.decode(ctx, page[2][i + 1])
    end
    return ids, dues, page[1], states
  end

  -- states: the texts of some children in <prefix>:waiting, false for a child that does not wait.
  function waiting.states(ctx, ids)
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

  -- ahead: how many children are ahead of this one.
  function waiting.ahead(ctx, key, id, due)
    local set = set_of(ctx, key)
    if set.changed then flush_set(ctx, set) end
    return call('ZRANK', key, padded(due) .. id) or 0
  end

  -- rank_of: the rank with which a child waits, or nil.
  function waiting.rank_of(ctx, key, id, due)
    local set, member = set_of(ctx, key), padded(due) .. id
    local rank = set.changes[member]
    if rank == nil then rank = tonumber(call('ZSCORE', key, member) or nil) end
    return rank or nil
  end

  -- held: how many buckets are held for a route.
  function waiting.held(ctx, name)
    return base.number(pcall_redis('ZCARD', waiting.route_key(ctx, name)))
  end

  -- turn_us: for how long a bucket waits for its turn at its route, about, and how long a round of all that wait takes;
  -- 0 where no bucket is held for the route, or the pace of its workers is not known.
  function waiting.turn_us(ctx, s)
    local name = s.p.route
    if not route.is_held(ctx, name) then return 0, 0 end
    local taken, over_us = room.pace_of(ctx, name)
    if not taken or taken == 0 then return 0, 0 end
    local all, key = waiting.held(ctx, name), waiting.route_key(ctx, name)
    local ahead = s.state == key and waiting.ahead(ctx, key, s.bucket, s.stored_due) or all
    return floor(ahead * over_us / taken), floor(all * over_us / taken)
  end
end
