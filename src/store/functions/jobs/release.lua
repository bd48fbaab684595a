-- needs: base, base.keys, context, limits.slots, policy.chain, policy.record, queue.retries, state, tree.budget
-- Release: an entry is no longer in flight: its slots are free, and nodes that waited for one resume.

local release = {}
do
  local policy_of = record.policy_of

  local FLUSHED = 500 -- nodes that are written at once

  -- slot_freed: a node may have a free slot. If it waits for one it resumes now, without credit for the wait.
  -- `ctx.earlier` says that the daemons are to be woken at the end of the call.
  function release.slot_freed(ctx, id)
    if chain.budget_of(id) then
      ctx.earlier = budget.slot_freed(ctx, id) or ctx.earlier
      return
    end
    local due = pcall_redis('ZSCORE', ctx.k.full, id)
    if type(due) ~= 'string' or slots.is_full(ctx, id, policy_of(ctx.rec, id)) then return end
    retries.arrive(ctx, {}, id, ctx.k.full, due + 0, 'free')
    ctx.earlier = true
  end

  -- entry: one entry of a route is no longer in flight: its slots are free.
  function release.entry(ctx, route_name, id)
    local nodes = slots.free(ctx, slots.name_of(route_name, id))
    for _, node in ipairs(nodes) do release.slot_freed(ctx, node) end
  end

  -- who_waits: those of some nodes that are blocked.
  local function who_waits(k, nodes)
    local found, list = pcall_redis('ZMSCORE', k.full, unpack(nodes)), {}
    if base.is_error(found) then return nodes end
    for i, id in ipairs(nodes) do
      if found[i] then list[#list + 1] = id end
    end
    return list
  end

  -- entries: some entries of a route are done, where no context is open yet. One is opened only where a node waits for
  -- a slot that they held.
  -- cost  1 call where no entry at all holds a slot, 2 where none of these does, 5 where no node waits for them
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
      release.slot_freed(ctx, node)
      if i % FLUSHED == 0 then state.flush(ctx) end
    end
    state.flush(ctx)
    if ctx.earlier then context.wake(k) end
  end
end
