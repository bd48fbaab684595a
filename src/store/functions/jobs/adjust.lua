-- needs: base, context, context.memory, limits.constraint_store, limits.constraints, pace.paid, pace.share,
--   queue.rejected, queue.retries, state, state.bucket, state.waiting, tree.budget
-- Adjust: a worker reports the real cost of a job that it holds. The difference becomes credit of the rates that the
-- job was charged to (pace/paid); finish tags, quotas and told limits move by it. No due moves.
--
-- <prefix>:adjusted is sorted by time and has the entries that were adjusted, "<route> <entry id>": an entry is
-- adjusted only once.

local adjust = {}
do
  local integer, digits = base.integer, base.digits

  local KEPT_US = 8 * 86400000000 -- how long names are kept of entries that a plain XACK finished
  local UNITS_MOST = 1000000000

  adjust.UNITS_MOST = UNITS_MOST

  -- units_of: the number in the text of a difference, or nil.
  function adjust.units_of(text)
    local sign, number = match(text or '', '^([+-]?)(%d+)$')
    local units = integer(number)
    if not units or units > UNITS_MOST then return nil end
    return sign == '-' and -units or units
  end

  -- without_over: drop a payment that has expired, as when a job leaves: it may be forgotten at any time.
  local function without_over(ctx, constraint)
    if constraint.paid and paid.expires_at(constraint.paid) <= ctx.now then constraint.paid = nil end
    return constraint
  end

  -- move_turn: the turn of a child of a budget moves with its tag, after a job that its bucket was charged `charged`
  -- for cost `real`.
  local function move_turn(ctx, s, b, id, p, charged, real)
    local tag = b.tags[id]
    if not tag then return end
    b.tags[id] = share.corrected(tag, b.virtual_time, (paid.units(b.p, real) - paid.units(b.p, charged)) / p.weight)
    local step = b.tags[id] - tag
    if id ~= s.bucket then return budget.shift_rank(ctx, budget.get(ctx, id), step) end
    if s.state and waiting.budget(ctx, s.state) == b.id then
      s.rank = waiting.shifted(waiting.rank_of(ctx, s.state, id, s.stored_due), step)
    end
  end

  -- of_budgets: correct the budgets above a bucket, and the turns of their children. Their rates took the job for what
  -- the bucket was charged, their quotas for its cost.
  local function of_budgets(ctx, s, job)
    local id, p = s.bucket, s.p
    for _, b in ipairs(budget.ancestors(ctx, p.parent)) do
      move_turn(ctx, s, b, id, p, job.charged, job.real)
      b.constraint, b.is_open = without_over(ctx, b.constraint or constraints.new(b.id)), nil
      constraints.correct(ctx, b.constraint, b.p, b.due, job.charged, job.real)
      if not b.state or b.state == ctx.k.rest then constraints.rests(ctx, b.constraint, b.due) end
      constraints.adjust(ctx, b.constraint, b.p, job.left_us, job.real - job.cost)
      budget.constraint_changed(ctx, b)
      constraints.hold_budget(ctx, b, b.p)
      budget.reconcile(ctx, b.id)
      id, p = b.id, b.p
    end
  end

  -- apply: the job of an entry with these fields cost so many units more, or less, than was said.
  -- reads, writes  as a look at its bucket, and the budgets above
  local function apply(ctx, fields, units)
    local name, cost = fields.bucket, integer(fields.cost or '') or 1
    local job = { cost = cost, charged = integer(fields.charged or '') or cost, real = max(0, cost + units),
      left_us = integer(fields.at_us or '') or ctx.now }
    if job.real ~= cost then context.count(ctx, job.real < cost and 'cost_less' or 'cost_more', 1) end
    if job.real == cost and job.charged == cost then return end
    local states, dues = state.load(ctx, { name })
    local queue, allowance = ctx.k.queues .. name, tonumber(call('HGET', ctx.k.level, name) or nil)
    local s = bucket.decide(ctx, {}, name, queue, bucket.length_of(ctx, queue) or 0, states[1], dues[1], allowance)
    local p, constraint = s.p, without_over(ctx, constraints.ensure(ctx, name, s.p))
    s.constraint = constraint
    if p.parent and not p.refused then of_budgets(ctx, s, job) end
    constraints.correct(ctx, constraint, p, s.due, cost, job.real)
    constraints.adjust(ctx, constraint, p, job.left_us, job.real - cost)
    constraint_store.change(ctx, constraint)
    -- What its quotas have left is another number now: it may be held from now on, or no more.
    s.due = constraints.hold(ctx, constraint, p, constraint.pace or s.due)
    s.retry_ready = retries.has_ended(ctx, name)
    if not rejected.trim_to_capacity(ctx, s) then
      bucket.park(ctx, s, 'change')
    else
      state.enter(ctx, s, s.due and state.decide(ctx, s) or nil, 'change')
    end
    memory.drop(ctx.memory, name)
  end

  -- entry: adjust a pending entry, once: `units_for` gets its cost. Replies whether it was adjusted now.
  function adjust.entry(ctx, route_name, id, fields, units_for)
    local name = route_name .. ' ' .. id
    if call('ZADD', ctx.k.adjusted, 'NX', ctx.now_text, name) == 0 then return false end
    call('ZREMRANGEBYSCORE', ctx.k.adjusted, '-inf', digits(ctx.now - KEPT_US))
    apply(ctx, fields, units_for(integer(fields.cost or '') or 1))
    state.flush(ctx)
    context.wake(ctx.k) -- a due may be earlier
    return true
  end

  -- done: these entries of a route are finished: forget that they were adjusted.
  function adjust.done(k, route_name, ids)
    local gone = {}
    for i, id in ipairs(ids) do gone[i] = route_name .. ' ' .. id end
    pcall_redis('ZREM', k.adjusted, unpack(gone))
  end
end
