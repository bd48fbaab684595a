-- Release: an entry is in flight no more, and what waited for a slot goes on.

local release = {}
do
  -- go_on: a node may have a slot free. If it waits for one it goes on now, with no credit for the wait.
  local function go_on(ctx, id)
    local p = record.policy_of(ctx.rec, id)
    local due = call('ZSCORE', ctx.k.full, id)
    if not due or p and slots.is_full(ctx, id, p) then return end
    if chain.budget_of(id) then
      budget.go_on(ctx, id)
    else
      bucket.commit(ctx, { bucket = id, place = ctx.k.full, stored_due = due + 0, due = max(due + 0, ctx.now) }, ctx.k.schedule)
    end
    ctx.earlier = true
  end

  -- entry: one entry of a route.
  function release.entry(ctx, route_name, id)
    for _, node in ipairs(slots.free(ctx, route_name, id)) do go_on(ctx, node) end
  end

  -- entries: some entries of a route are done, where no call is open yet: one is, if they can hold a slot at all.
  function release.entries(prefix, route_name, ids, now_us)
    local k = keys.of(prefix)
    if #ids == 0 or call('EXISTS', k.slots) == 0 then return end
    local ctx = context.open(prefix, now_us)
    ctx.earlier = false
    for _, id in ipairs(ids) do release.entry(ctx, route_name, id) end
    bucket.flush(ctx)
    if ctx.earlier then context.wake(k) end
  end
end
