-- Slots: how many jobs of a node are in flight, dispatched and not finished.
--
-- <prefix>:slots keeps a line for each entry that holds any: "<route> <entry id>" -> the ids of the nodes, one a line. (An entry id
-- alone is not unique among streams.) Whatever takes an entry out of the pending list removes its line first and frees exactly these
-- slots, whatever the policy says by then. <prefix>:inflight counts the lines of each node.
-- A node with work that has no slot free stands in <prefix>:full.

local slots = {}
do
  -- count: how many slots of a node are taken.
  function slots.count(ctx, id)
    local known = ctx.inflight
    if not known then
      known = {}
      ctx.inflight = known
    end
    local n = known[id]
    if not n then
      n = tonumber(call('HGET', ctx.k.inflight, id) or nil) or 0
      known[id] = n
    end
    return n
  end

  -- is_full: whether a node with this policy may let out nothing until a slot is free.
  function slots.is_full(ctx, id, p)
    return p.concurrency ~= nil and slots.count(ctx, id) >= p.concurrency
  end

  -- take: an entry holds a slot of each of these nodes.
  -- writes  slots, inflight      cost  1 call, and 1 a node
  function slots.take(ctx, route_name, entry, ids)
    call('HSET', ctx.k.slots, route_name .. ' ' .. entry, table.concat(ids, '\n'))
    for _, id in ipairs(ids) do ctx.inflight[id] = call('HINCRBY', ctx.k.inflight, id, '1') end
  end

  -- free: an entry is in flight no more. Replies the nodes whose slots it held; none where it held none.
  -- writes  slots, inflight      cost  1 call, and where it held slots 1, and 1 or 2 a node
  function slots.free(ctx, route_name, entry)
    local name = route_name .. ' ' .. entry
    local line = call('HGET', ctx.k.slots, name)
    local ids = {}
    if not line then return ids end
    call('HDEL', ctx.k.slots, name)
    for id in gmatch(line, '[^\n]+') do
      local n = call('HINCRBY', ctx.k.inflight, id, '-1')
      if n <= 0 then call('HDEL', ctx.k.inflight, id) end
      if ctx.inflight then ctx.inflight[id] = max(n, 0) end
      ids[#ids + 1] = id
    end
    return ids
  end
end
