-- needs: base, base.call, jobs.slots, pace.rate, policy.chain, policy.record, queue.bucket, queue.dispatch,
--   queue.plain, queue.retries, tree.budget, tree.waiting
-- Serve: the turn of a budget. When it may go, it picks the child whose turn it is, and so on down to a bucket, which lets out one job.

local serve = {}
do
  local spent, policy_of = context.spent, record.policy_of

  -- bucket_turn: a bucket is picked. It lets out a job, or moves to the place in which it must wait. Replies whether one left.
  local function bucket_turn(ctx, key, one)
    ctx.picked, ctx.picked_key = one, key
    if ctx.is_plain and not (ctx.has_ended and retries.has_ended(ctx, one.id)) and plain.picked(ctx, key, one) then
      ctx.picked = nil
      return true
    end
    local s, queue = {}, ctx.k.queues .. one.id
    local level = ctx.has_levels and tonumber(call('HGET', ctx.k.level, one.id) or nil) or nil
    plain.pause(ctx)
    bucket.decide(ctx, s, one.id, queue, bucket.length_of(ctx, queue) or 0, key, one.due, level)
    s.due, s.picked, s.turn_ends = s.due or ctx.now, true, one.ends
    local announced, before = ctx.has_retries and retries.has_ended(ctx, one.id), ctx.dispatched
    dispatch.turn(ctx, s, 1, announced)
    ctx.picked = nil
    return ctx.dispatched > before
  end

  local budget_turn

  -- pick: the turn of one child of a waiting set, or what becomes of it. Replies whether a job left; nil where no child waits. `wanted`
  -- says how many are to be picked.
  local function pick(ctx, b, key, wanted)
    local one = waiting.first(ctx, key, wanted)
    if not one then return nil end
    if one.ends == waiting.FRONT then -- it pays as if it had waited for its turn
      local ends = budget.end_of(ctx, b, one.id, policy_of(ctx.rec, one.id))
      one = { id = one.id, due = one.due, member = one.member, ends = ends }
    end
    if chain.budget_of(one.id) then return budget_turn(ctx, budget.get(ctx, one.id), one) end
    return bucket_turn(ctx, key, one)
  end

  -- budget_turn: a budget is picked by the one above it. It may have been paused since, or its rate have changed.
  function budget_turn(ctx, b, one)
    local has_left = false
    if budget.may_go_by_itself(ctx, b) then
      budget.serves(b, true, one.ends)
      has_left = pick(ctx, b, waiting.key(ctx, b.id), 1) or false
      budget.serves(b, false)
    end
    budget.take_place(ctx, b, has_left)
    return has_left
  end

  -- allows: how many of n jobs a budget that may go lets out now, one at least.
  local function allows(ctx, b, n)
    local p = b.p
    if p.concurrency then n = min(n, p.concurrency - slots.count(ctx, b.id)) end
    if p.count then n = rate.before(p, max(b.due, ctx.now - p.catch_up_us), n, ctx.now + 1) end
    return max(n, 1)
  end

  -- turn: a budget on the schedule is due, and lets out at most so many jobs. Whatever it moves counts as one. Replies what is left.
  -- cost  O(quota)
  function serve.turn(ctx, id, quota)
    local b, left, key, wanted = budget.get(ctx, id), quota, waiting.key(ctx, id), nil
    -- Where the set in which it was to stand takes nothing, it was put on the schedule instead.
    if b.place ~= ctx.k.schedule then b.place, b.stands, b.at, b.stands_at = ctx.k.schedule, ctx.k.schedule, 0, 0 end
    budget.serves(b, true)
    local now, parent = ctx.now, b.p and b.p.parent
    while left > 0 and not spent(ctx) do
      local may_go = b.is_open and b.due <= now or budget.may_go_by_itself(ctx, b)
      if not may_go or parent and budget.blocked(ctx, parent) then break end
      wanted = wanted or allows(ctx, b, left)
      local found = pick(ctx, b, key, wanted)
      if found == nil then break end
      left = left - 1
    end
    budget.serves(b, false)
    budget.settle(ctx, b)
    return min(left, quota - 1)
  end

  -- park: the turn of a budget raised. The bucket that it had picked is looked at again later, and the others go on.
  function serve.park(ctx, id)
    local one = ctx.picked
    if one then
      local s = { bucket = one.id, p = policy_of(ctx.rec, one.id), place = ctx.picked_key, stored_due = one.due }
      bucket.park(ctx, s)
      ctx.picked = nil
    end
    for _, b in pairs(ctx.memory.budgets.of) do
      if b.serving then budget.serves(b, false) end
    end
    budget.settle(ctx, budget.get(ctx, id))
  end
end
