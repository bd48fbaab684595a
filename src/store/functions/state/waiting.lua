-- needs: base, context, policy.chain
-- Waiting lines: nodes that take turns, ordered by rank (the score), the finish tag of the next job of each:
--   <prefix>:wait:<budget>{<route>}  children of a budget with jobs for that route (pace/share)
--   <prefix>:wait:{<route>}          nodes without a budget above them that wait for that route (state/line)
-- A member is a due in 16 digits and the node's id: Redis orders equal scores by member, so the earlier due goes first.
-- A bucket waits in one line. A budget stands in a line for each route for which something waits below it, and its
-- state is kept as the name of such a line without a route: wait:<budget>{}, and wait:{} where it is held
-- (tree/budget). The hash <prefix>:waiting has the line and the due of each waiting node. A call writes its changes at
-- its end (`flush`). Reads of the same call already see them.

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

  -- line: the key of the line of a budget for a route; for all of its routes ('') it is a state of budgets.
  -- route_key: the key of the line of a route.
  -- parts: the id of the budget and the name of the route of such a key or state; nil and '' where it has none. (No
  -- name has a brace.)
  function waiting.line(ctx, parent, name)
    return ctx.k.wait .. sub(parent, 2, -2) .. '{' .. name .. '}'
  end

  function waiting.route_key(ctx, name)
    return ctx.k.wait .. '{' .. name .. '}'
  end

  function waiting.parts(ctx, from)
    local of, name = match(sub(from, #ctx.k.wait + 1), '^(.*){(.*)}$')
    return of and of ~= '' and chain.id_of(of) or nil, name or ''
  end

  -- budget: the id of the budget whose line or whose children's state this is, nil for any other state.
  -- is_held: whether a state is that of held nodes.
  function waiting.budget(ctx, from)
    if waiting.is_set(ctx, from) then return (waiting.parts(ctx, from)) end
  end

  function waiting.is_held(ctx, from)
    return waiting.is_set(ctx, from) and byte(from, #ctx.k.wait + 1) == OPENS
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
        count = nil,
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
  waiting.is_before = is_before

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

  -- place: a node joins a line. A node behind the part that was read is not added to it: a later read finds it.
  -- unplace: a node leaves a line. Where that was the last one, the budget must know it (`settle`, tree/states).
  local due_before, at_before -- many children have the same due

  function waiting.place(ctx, key, id, due, rank)
    local set = set_of(ctx, key)
    local list, bound = set.list, set.bound
    if due ~= due_before then due_before, at_before = due, padded(due) end
    local member = at_before .. id
    set.changes[member], set.changed = rank, true
    if set.count then set.count = set.count + 1 end
    if list and (not bound or is_before(rank, member, bound)) then
      insert(list, { id = id, due = due, rank = rank, member = member })
    end
    return set
  end

  local function take_out(ctx, set, member)
    if set.count then set.count = set.count - 1 end
    set.changes[member], set.changed = false, true
    remove(set, member)
    if byte(set.of) == OPENS then return end
    if not ctx.left_lines then ctx.left_lines = {} end
    ctx.left_lines[set.key], ctx.write_budgets = true, ctx.write_budgets or waiting.settle
  end

  function waiting.unplace(ctx, key, id, due)
    take_out(ctx, set_of(ctx, key), padded(due) .. id)
  end

  -- note: a node waits in this line (or state) with this due; without them it waits no more.
  function waiting.note(ctx, id, key, due)
    note_state(ctx, id, key and padded(due) .. ' ' .. sub(key, #ctx.k.wait + 1) or false)
  end

  -- join: a bucket joins a line.
  -- leave: a bucket leaves a line.
  function waiting.join(ctx, key, id, due, rank)
    local set = waiting.place(ctx, key, id, due, rank)
    note_state(ctx, id, at_before .. ' ' .. set.of)
  end

  function waiting.leave(ctx, key, id, due)
    waiting.unplace(ctx, key, id, due)
    note_state(ctx, id, false)
  end

  -- served: a bucket that was found in a line (`first`) had its turn. It waits for its next turn with this due and
  -- rank; without them it leaves the line.
  function waiting.served(ctx, one, due, rank)
    take_out(ctx, set_of(ctx, one.key), one.member)
    if rank then return waiting.join(ctx, one.key, one.id, due, rank) end
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
    local most = max(wanted + 1, min(PAGE, max(FIRST_PAGE, set.page and 4 * set.page or 0)))
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

  -- first: the node whose turn is next after the `passed` ones before it, { id, due, rank, member }, or nil. It stays
  -- in the line. `wanted` is how many are to be served.
  function waiting.first(ctx, key, wanted, passed)
    local set = set_of(ctx, key)
    passed = passed or 0
    while not set.list or not set.list[passed + 1] and set.bound do read(ctx, set, (wanted or 1) + passed) end
    return set.list[#set.list - passed]
  end

  -- is_empty: whether nothing waits in a line.
  function waiting.is_empty(ctx, key) return waiting.first(ctx, key) == nil end

  -- front: the first nodes of a set, at most `most`, in the order of their turns.
  function waiting.front(ctx, key, most)
    local set, list = set_of(ctx, key), {}
    if most < 1 then return list end
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

  -- count: how many nodes wait in a line; 0 where it cannot be read.
  function waiting.count(ctx, key)
    local set = set_of(ctx, key)
    if set.list and not set.bound then return #set.list end
    if not set.count then
      if set.changed then flush_set(ctx, set) end
      set.count = base.number(pcall_redis('ZLEXCOUNT', key, '-', '+')) -- all: users of every role may ask this
    end
    return set.count
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

  -- held: how many nodes stand in the line of a route.
  function waiting.held(ctx, name)
    return base.number(pcall_redis('ZCARD', waiting.route_key(ctx, name)))
  end
end
