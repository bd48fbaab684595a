-- needs: base, context, dispatch, dispatch.fast_path, limits.slots, pace.rate, policy.chain, policy.record,
--   queue.retries, route.room, state.bucket, state.line, state.waiting, tree.budget, tree.path
-- Serve: the turn of a budget, on the schedule or at a route. It grants turns to its children in the order of their
-- ranks. A child that is a budget grants a turn in its place, and so on down to a bucket, which lets out one job. The
-- routes that take jobs now are a set, `takes`: one that turns out to take none is removed from it.

local serve = {}
do
  local spent, policy_of = context.spent, record.policy_of

  -- grant_bucket: grant a turn to a bucket. A job leaves, or the bucket enters the state in which it must wait. Replies
  -- the route for which a job left, or false: none did. Where its route takes none nothing is done for it.
  local function grant_bucket(ctx, up, one, p, takes)
    ctx.granted, ctx.granted_key, ctx.granted_s = one, one.key, nil
    if ctx.is_fast and not (ctx.has_ended and retries.has_ended(ctx, one.id)) and fast_path.granted(ctx, one, p) then
      ctx.granted = nil
      return one.route
    end
    fast_path.pause(ctx)
    local is_here = p.route == one.route and p.parent == up.id
    if is_here and room.of(ctx, one.route).left <= 0 then
      takes[one.route], ctx.granted = nil, nil
      return false
    end
    local s, queue, before = {}, ctx.k.queues .. one.id, ctx.dispatched
    local allowance = ctx.has_allowances and tonumber(call('HGET', ctx.k.level, one.id) or nil) or nil
    ctx.granted_s = s -- from here on its due is charged as its job leaves
    bucket.decide(ctx, s, one.id, queue, bucket.length_of(ctx, queue) or 0, one.key, one.due, allowance)
    s.due, s.granted, s.finish = s.due or ctx.now, true, one.rank
    local announced = ctx.has_retries and retries.has_ended(ctx, one.id)
    dispatch.turn(ctx, s, 1, announced, 'turn')
    ctx.granted = nil
    return ctx.dispatched > before and p.route
  end

  local grant_budget

  -- grant: grant a turn to the first child of a budget among those that wait for the routes that take jobs. Replies as
  -- `grant_bucket`; nil where no child waits. `wanted` is how many turns are to be granted.
  local function grant(ctx, b, takes, wanted)
    local one = budget.first(ctx, b, takes, wanted)
    if not one then return nil end
    local p = policy_of(ctx.rec, one.id)
    if one.rank == waiting.FRONT and p then -- it is charged as if it had waited for its turn
      one = { id = one.id, due = one.due, member = one.member, rank = budget.finish_of(b, one.id, p), key = one.key,
        route = one.route }
    end
    if chain.budget_of(one.id) then return grant_budget(ctx, b, one, takes) end
    return grant_bucket(ctx, b, one, p, takes)
  end

  -- grant_budget: a budget is granted a turn by the budget above it. It may have been paused meanwhile, or its rate may
  -- have changed.
  function grant_budget(ctx, up, one, takes)
    local b, has_left = budget.get(ctx, one.id), false
    -- The lines in which it was found are its state, whatever the budgets hash says: that may have been lost.
    if not budget.found(ctx, b, one.route) then
      waiting.unplace(ctx, one.key, one.id, one.due)
      return false
    end
    local key = waiting.line(ctx, up.id, '')
    if b.state ~= key then b.state, b.at, b.is_open = key, one.due, nil end
    if budget.is_eligible(ctx, b) then
      budget.set_serving(b, true, one.rank)
      has_left = grant(ctx, b, takes, 1) or false
      budget.set_serving(b, false)
      if not has_left and not takes[one.route] then return false end
    end
    budget.enter_after_grant(ctx, b, has_left)
    if has_left then budget.note_away(up, b.state == ctx.k.schedule and b.id or nil) end
    return has_left
  end

  -- turn: let out at most `most` jobs of a budget for the routes `takes`; a child that moves without a job counts as
  -- one. With `is_one` the first job is the last. Replies the route of the last job that left, or false, and how many
  -- are left of `most`.
  local function turn(ctx, b, takes, most, wanted, is_one)
    local parent, gone = b.p and b.p.parent, false
    budget.set_serving(b, true)
    while most > 0 and next(takes) and not spent(ctx) do
      local is_eligible = b.is_open and b.due <= ctx.now or budget.is_eligible(ctx, b)
      if not is_eligible or parent and path.is_blocked(ctx, parent) then break end
      local found = grant(ctx, b, takes, wanted)
      if found == nil then break end
      gone = found or gone
      if found or next(takes) then most = most - 1 end
      if gone and is_one then break end
    end
    budget.set_serving(b, false)
    fast_path.pause(ctx)
    return gone, most
  end

  -- allows: how many of n jobs an eligible budget lets out now, at least one.
  local function allows(ctx, b, n)
    local p = b.p
    if p.concurrency then n = min(n, p.concurrency - slots.count(ctx, b.id)) end
    if p.count then n = rate.before(p, max(b.due, ctx.now - p.catch_up_us), n, ctx.now + 1) end
    return max(n, 1)
  end

  -- goes_beyond: the child that a budget serves next at a route in whose line it is the first. There it goes at once
  -- when it becomes due, although the limit of the route is reached: else it would lose each turn that comes while it
  -- is not due.
  local function goes_beyond(ctx, b)
    local best
    for name, place in pairs(b.routes) do
      local first = place and waiting.first(ctx, waiting.route_key(ctx, name))
      local one = first and first.id == b.id and budget.first(ctx, b, { [name] = true })
      if one and (not best or waiting.is_before(one.rank, one.member, best)) then best = one end
    end
    return best
  end

  -- round: a budget on the schedule is due and lets out at most `allowed` jobs for the routes that take any. Replies
  -- how much of `allowed` is left.
  -- cost  O(allowed)
  function serve.round(ctx, id, allowed)
    local b, left, gone, best = budget.get(ctx, id), allowed, nil, nil
    -- A set that cannot be written leaves its members on the schedule, so the budget may know another state.
    if b.state ~= ctx.k.schedule then
      b.state, b.stored_state, b.at, b.stored_at = ctx.k.schedule, ctx.k.schedule, 0, 0
    end
    while left > 0 and budget.is_eligible(ctx, b) do
      local takes, stands = {}, false
      for name in pairs(b.routes) do
        if room.of(ctx, name).left > 0 then takes[name] = true end
      end
      budget.stand(ctx, b)
      for _, place in pairs(b.routes) do stands = stands or place end
      best = stands and goes_beyond(ctx, b)
      local other = best and next(takes) and budget.first(ctx, b, takes)
      if best and not (other and waiting.is_before(other.rank, other.member, best)) then
        local name = best.route
        gone = room.beyond(ctx, name, function() return (turn(ctx, b, { [name] = true }, 1, 1, true)) end)
        if gone then budget.served(ctx, b, name) end
        if gone or not next(takes) then break end
      end
      if not next(takes) then break end
      local before = left
      gone, left = turn(ctx, b, takes, left, allows(ctx, b, left), stands)
      if gone then line.charge(ctx, gone, id, budget.turns(ctx, b, gone), before - left) end
      if not gone or not stands then break end
    end
    budget.enter_after_turn(ctx, b)
    return min(left, allowed - 1)
  end

  -- at_route: the turn of a budget that is the first in the line of a route, `one` of it. Replies how many turns of
  -- children that took, at most `most`; nil: it is passed over, because it is not due.
  function serve.at_route(ctx, name, one, most)
    local b = budget.get(ctx, one.id)
    if not budget.found(ctx, b, name, one.due) then
      waiting.unplace(ctx, waiting.route_key(ctx, name), one.id, one.due)
      return 1
    end
    if not budget.is_eligible(ctx, b) or b.state ~= ctx.k.schedule and not waiting.is_held(ctx, b.state) then
      if b.state ~= ctx.k.schedule or b.at <= ctx.now then budget.decide(ctx, b, 'change') else budget.stand(ctx, b) end
      return b.routes[name] ~= one.due and 1 or nil
    end
    local gone, left = turn(ctx, b, { [name] = true }, most, 1, true)
    if gone then budget.served(ctx, b, name) end
    budget.enter_after_turn(ctx, b)
    return most - left
  end

  -- leave_route: a route takes more than what is due in its line: a budget that stands there before its due leaves it.
  function serve.leave_route(ctx, name, one)
    local b = budget.get(ctx, one.id)
    if b.routes[name] == one.due and b.state == ctx.k.schedule then budget.leave_line(ctx, b, name) end
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
