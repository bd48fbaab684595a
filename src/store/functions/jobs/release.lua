-- needs: base, base.call, base.keys, jobs.slots, policy.chain, policy.record, queue.places, queue.retries,
--   tree.budget
-- Release: an entry is in flight no more, and what waited for a slot goes on.

local release = {}
do
  local policy_of = record.policy_of

  local FLUSHED = 500 -- nodes that are written at once

  -- go_on: a node may have a slot free. If it waits for one it goes on now, with no credit for the wait; the daemons are told at the
  -- end of the call.
  function release.go_on(ctx, id)
    if chain.budget_of(id) then
      ctx.earlier = budget.go_on(ctx, id) or ctx.earlier
      return
    end
    local due = pcall_redis('ZSCORE', ctx.k.full, id)
    if type(due) ~= 'string' or slots.is_full(ctx, id, policy_of(ctx.rec, id)) then return end
    retries.come_back(ctx, {}, id, ctx.k.full, due + 0)
    ctx.earlier = true
  end

  -- entry: one entry of a route.
  function release.entry(ctx, route_name, id)
    for _, node in ipairs(slots.free_entry(ctx, route_name, id)) do release.go_on(ctx, node) end
  end

  -- who_waits: those of some nodes that stand among those without a free slot.
  local function who_waits(k, nodes)
    local found, list = pcall_redis('ZMSCORE', k.full, unpack(nodes)), {}
    if base.is_error(found) then return nodes end
    for i, id in ipairs(nodes) do
      if found[i] then list[#list + 1] = id end
    end
    return list
  end

  -- entries: some entries of a route are done, where no call is open yet: one is, if somebody waits for a slot that they held.
  -- cost  1 call where no entry at all holds one, 2 where none of these does, 5 where nobody waits for them
  function release.entries(space, route_name, ids, now_us)
    local k = keys.of(space)
    if #ids == 0 or call('EXISTS', k.slots) == 0 then return end
    local held, lines = slots.lines_of(k, route_name, ids)
    local nodes = held[1] and slots.remove(k, held, lines) or {}
    local waits = nodes[1] and who_waits(k, nodes) or {}
    if not waits[1] then return end
    local ctx = context.open(space, now_us)
    ctx.earlier = false
    for i, node in ipairs(waits) do
      release.go_on(ctx, node)
      if i % FLUSHED == 0 then places.flush(ctx) end
    end
    places.flush(ctx)
    if ctx.earlier then context.wake(k) end
  end
end
