-- needs: base, context, dispatch, dispatch.fast_path, limits.slots, pace.rate, policy.chain, policy.record,
--   queue.retries, state.bucket, state.waiting, tree.budget, tree.path
-- Serve: the turn of a budget. It grants turns to its children in the order of their ranks. A child that is a budget
-- grants a turn in its place, and so on down to a bucket, which lets out one job.

local serve = {}
do
  local spent, policy_of = context.spent, record.policy_of

  -- grant_bucket: grant a turn to a bucket. A job leaves, or the bucket enters the state in which it must wait. Replies
  -- whether a job left.
  local function grant_bucket(ctx, key, one)
    ctx.granted, ctx.granted_key, ctx.granted_s = one, key, nil
    if ctx.is_fast and not (ctx.has_ended and retries.has_ended(ctx, one.id)) and fast_path.granted(ctx, key, one) then
      ctx.granted = nil
      return true
    end
    local s, queue = {}, ctx.k.queues .. one.id
    local allowance = ctx.has_allowances and tonumber(call('HGET', ctx.k.level, one.id) or nil) or nil
    fast_path.pause(ctx)
    ctx.granted_s = s -- from here on its due is charged as its job leaves
    bucket.decide(ctx, s, one.id, queue, bucket.length_of(ctx, queue) or 0, key, one.due, allowance)
    s.due, s.granted, s.finish = s.due or ctx.now, true, one.rank
    local announced, before = ctx.has_retries and retries.has_ended(ctx, one.id), ctx.dispatched
    dispatch.turn(ctx, s, 1, announced, 'turn')
    ctx.granted = nil
    return ctx.dispatched > before
  end

  local grant_budget

  -- grant: grant a turn to the first child of a waiting set. Replies whether a job left; nil where no child waits.
  -- `wanted` is how many turns are to be granted.
  local function grant(ctx, b, key, wanted)
    local one = waiting.first(ctx, key, wanted)
    if not one then return nil end
    local p = policy_of(ctx.rec, one.id)
    if one.rank == waiting.FRONT and p then -- it is charged as if it had waited for its turn
      local finish = budget.finish_of(b, one.id, p)
      one = { id = one.id, due = one.due, member = one.member, rank = finish }
    end
    if chain.budget_of(one.id) then return grant_budget(ctx, budget.get(ctx, one.id), one, key) end
    return grant_bucket(ctx, key, one)
  end

  -- grant_budget: a budget is granted a turn by the budget above it. It may have been paused meanwhile, or its rate may
  -- have changed.
  function grant_budget(ctx, b, one, key)
    local has_left = false
    -- The set in which it was found is its state, whatever the budgets hash says: that may have been lost.
    if b.state ~= key then b.state, b.at, b.is_open = key, one.due, nil end
    if budget.is_eligible(ctx, b) then
      budget.set_serving(b, true, one.rank)
      has_left = grant(ctx, b, waiting.key(ctx, b.id), 1) or false
      budget.set_serving(b, false)
    end
    budget.enter_after_grant(ctx, b, has_left)
    return has_left
  end

  -- allows: how many of n jobs an eligible budget lets out now, at least one.
  local function allows(ctx, b, n)
    local p = b.p
    if p.concurrency then n = min(n, p.concurrency - slots.count(ctx, b.id)) end
    if p.count then n = rate.before(p, max(b.due, ctx.now - p.catch_up_us), n, ctx.now + 1) end
    return max(n, 1)
  end

  -- round: a budget on the schedule is due and lets out at most `allowed` jobs. A child that moves without a job counts
  -- as one. Replies how much of `allowed` is left.
  -- cost  O(allowed)
  function serve.round(ctx, id, allowed)
    local b, left, key, wanted = budget.get(ctx, id), allowed, waiting.key(ctx, id), nil
    -- A set that cannot be written leaves its members on the schedule, so the budget may know another state.
    if b.state ~= ctx.k.schedule then
      b.state, b.stored_state, b.at, b.stored_at = ctx.k.schedule, ctx.k.schedule, 0, 0
    end
    budget.set_serving(b, true)
    local now, parent = ctx.now, b.p and b.p.parent
    while left > 0 and not spent(ctx) do
      local is_eligible = b.is_open and b.due <= now or budget.is_eligible(ctx, b)
      if not is_eligible or parent and path.is_blocked(ctx, parent) then break end
      wanted = wanted or allows(ctx, b, left)
      local found = grant(ctx, b, key, wanted)
      if found == nil then break end
      left = left - 1
    end
    budget.set_serving(b, false)
    budget.enter(ctx, b, 'turn')
    return min(left, allowed - 1)
  end

  -- park: the turn of a budget raised an error. The bucket that was granted a turn is parked and tried again later, so
  -- that the others are served.
  function serve.park(ctx, id)
    local one = ctx.granted
    if one then
      local p, known = policy_of(ctx.rec, one.id), ctx.granted_s
      local s = { bucket = one.id, p = p, state = ctx.granted_key, stored_due = one.due, due = known and known.due }
      bucket.park(ctx, s, 'turn', not known and p.interval_us or nil)
      ctx.granted = nil
    end
    for _, b in pairs(ctx.memory.budgets.of) do
      if b.serving then budget.set_serving(b, false) end
    end
    budget.enter(ctx, budget.get(ctx, id), 'turn')
  end
end
