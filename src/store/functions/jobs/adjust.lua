-- needs: base, context, context.memory, limits.constraint_store, limits.constraints, pace.paid,
--   queue.rejected, queue.retries, state, state.bucket, state.waiting, tree.budget
-- Adjust: a worker reports the real cost of a job that it holds. The dues, finish tags, quotas and told limits that
-- the job was charged to move by the difference.
--
-- <prefix>:adjusted is sorted by time and has the entries that were adjusted, "<route> <entry id>": an entry is
-- adjusted only once.

local adjust = {}
do
  local integer, digits = base.integer, base.digits

  local OWES_US = 3600000000 -- how far ahead an adjustment moves a due, at most
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

  -- moved: a due after so many units more, or less: never before now, and at most an hour ahead. `left_us` is when the
  -- job left.
  local function moved(ctx, constraint, p, due, units, left_us, charged)
    local interval_us = constraints.interval_us(constraint, p)
    local was = max(due or 0, left_us + charged * interval_us)
    if due and due > ctx.now then was = due end
    return max(ctx.now, min(was + units * interval_us, max(was, ctx.now + OWES_US)))
  end

  -- by_rate: the due of a node by its rate alone, given its due by both rates. The dues of a payment may be too far
  -- ahead where the clock stepped back since: only the due of the node was reconciled. A due later than both counts for
  -- both (pace/paid): the node was paused, or they are not known.
  local function by_rate(ctx, constraint, p, due)
    if not p.job or not constraint.paid then return due end
    if not due then return min(constraint.paid.unit_due, ctx.now) end
    return (paid.dues(constraint.paid, due))
  end

  -- charge: update the payment of a node: its due by the rate is `due` now; by both rates it was `before`. Replies the
  -- due by both rates.
  local function charge(ctx, constraint, p, due, before)
    local d = constraint.paid or paid.new()
    d.cost = max(d.cost, ceil((due - ctx.now) / max(1, constraints.interval_us(constraint, p))))
    if p.job then d.unit_due, due = due, max(due, min(d.job_due, before or ctx.now)) end
    d.over = max(d.over, due + p.catch_up_us)
    constraint.paid = d
    constraint_store.change(ctx, constraint)
    return due
  end

  -- without_over: drop a payment that has expired, as when a job leaves: it may be forgotten at any time.
  local function without_over(ctx, constraint)
    if constraint.paid and constraint.paid.over <= ctx.now then constraint.paid = nil end
    return constraint
  end

  -- of_budgets: adjust the budgets above a bucket, and the turns of their children.
  local function of_budgets(ctx, s, units, left_us, charged)
    local id, p = s.bucket, s.p
    for _, b in ipairs(budget.ancestors(ctx, p.parent)) do
      local step = (paid.units(b.p, max(1, charged + units)) - paid.units(b.p, charged)) / p.weight
      if b.tags[id] then b.tags[id] = b.tags[id] + step end
      if id == s.bucket then
        if s.state == waiting.key(ctx, b.id) then
          s.rank = waiting.shifted(waiting.rank_of(ctx, s.state, id, s.stored_due), step)
        end
      else
        budget.shift_rank(ctx, budget.get(ctx, id), step)
      end
      b.constraint, b.is_open = without_over(ctx, b.constraint or constraints.new(b.id)), nil
      if b.p.count and not b.p.ignores_cost then
        local due = by_rate(ctx, b.constraint, b.p, b.due)
        b.due = charge(ctx, b.constraint, b.p, moved(ctx, b.constraint, b.p, due, units, left_us, charged), b.due)
      end
      constraints.adjust(ctx, b.constraint, b.p, left_us, units)
      budget.constraint_changed(ctx, b)
      constraints.hold_budget(ctx, b, b.p)
      budget.reconcile(ctx, b.id)
      id, p = b.id, b.p
    end
  end

  -- apply: the job of an entry with these fields cost so many units more, or less.
  -- reads, writes  as a look at its bucket, and the budgets above
  local function apply(ctx, fields, units)
    local name, charged, left_us =
      fields.bucket, integer(fields.cost or '') or 1, integer(fields.at_us or '') or ctx.now
    units = max(units, -charged)
    if units == 0 then return end
    local states, dues = state.load(ctx, { name })
    local queue, allowance = ctx.k.queues .. name, tonumber(call('HGET', ctx.k.level, name) or nil)
    local s = bucket.decide(ctx, {}, name, queue, bucket.length_of(ctx, queue) or 0, states[1], dues[1], allowance)
    local p, constraint = s.p, without_over(ctx, constraints.ensure(ctx, name, s.p))
    s.constraint = constraint
    if p.parent and not p.refused then of_budgets(ctx, s, units, left_us, charged) end
    constraints.adjust(ctx, constraint, p, left_us, units)
    -- A bucket that a quota or a slow-down holds waits until that ends, whatever its job cost. A cooling bucket whose
    -- due has passed has no known due.
    local pace = constraint.pace or s.due
    if pace == ctx.now and s.state == ctx.k.rest then pace = nil end
    local due = moved(ctx, constraint, p, by_rate(ctx, constraint, p, pace), units, left_us, charged)
    s.due = constraints.hold(ctx, constraint, p, charge(ctx, constraint, p, due, pace))
    s.retry_ready = retries.has_ended(ctx, name)
    if not rejected.trim_to_capacity(ctx, s) then
      bucket.park(ctx, s, 'change')
    else
      state.enter(ctx, s, state.decide(ctx, s), 'change')
    end
    memory.drop(ctx.memory, name)
  end

  -- entry: adjust a pending entry, once: `units_for` gets what it was charged. Replies whether it was adjusted now.
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
