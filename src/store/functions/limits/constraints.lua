-- needs: base, limits.constraint_store, pace.paid, pace.quota, pace.rate, pace.slowdown, pace.told, policy.chain
-- Constraints: what stops a node besides its own rate and catch-up: the windows of its quotas (pace/quota), its
-- slow-down (pace/slowdown), what the other side told of its limit (pace/told), and the charge for its last job
-- (pace/paid). How they are stored is in limits/constraint_store.
--
-- The constraint of a node, `constraint`:
--   id                             the node
--   slowdown, windows, told, paid  what is stored of it; each may be missing
--   pace, held                     of a bucket that a constraint holds: its due without the constraint, and when the
--                                  constraint ends

local constraints = {}
do
  local change = constraint_store.change

  -- new: the constraint of a node of which nothing is stored.
  function constraints.new(id) return { id = id } end

  -- decides_due: whether the due of a bucket with this constraint may differ from the stored one: a slow-down, a told
  -- limit or a payment paces it, or one that is forgotten by now held it (`pace`) and it has not resumed.
  local function decides_due(constraint)
    return constraint and (constraint.slowdown or constraint.told or constraint.paid or constraint.pace) ~= nil
  end

  -- expect: these nodes are needed next: read their constraints at once. ctx.slowed has the buckets whose constraint
  -- decides their due. Budgets are left out: tree/budget keeps their constraints, and a second copy would overwrite
  -- them.
  function constraints.expect(ctx, names)
    if not constraint_store.is_any(ctx) then return end
    local known, missing = ctx.constraints or {}, {}
    for _, name in ipairs(names) do
      if known[name] == nil and not chain.budget_of(name) then missing[#missing + 1] = name end
    end
    if not missing[1] then return end
    ctx.constraints = known
    local found = constraint_store.read(ctx, missing)
    for i = 1, #missing do
      known[missing[i]] = found[i]
      if decides_due(found[i]) then
        ctx.slowed = ctx.slowed or {}
        ctx.slowed[missing[i]] = true
      end
    end
  end

  -- of: the constraint of a bucket, or nil where it has none.
  function constraints.of(ctx, name, p)
    if not constraint_store.is_any(ctx) and not ctx.constraints and not p.quotas and not p.job then return nil end
    ctx.constraints = ctx.constraints or {}
    local constraint = ctx.constraints[name]
    if constraint == nil then
      constraint = constraint_store.read(ctx, { name })[1]
      ctx.constraints[name] = constraint
    end
    if not constraint and (p.quotas or p.job) then
      constraint = constraints.new(name)
      ctx.constraints[name] = constraint
    end
    return constraint or nil
  end

  -- is_slowed: whether the constraint of a bucket decides its due: then it takes the full path.
  function constraints.is_slowed(ctx, name, p)
    return decides_due((ctx.has_slow or ctx.has_told or ctx.has_paid) and constraints.of(ctx, name, p))
  end

  -- ensure: the constraint of a bucket; it is made where there is none.
  function constraints.ensure(ctx, name, p)
    local constraint = constraints.of(ctx, name, p)
    if not constraint then
      constraint = constraints.new(name)
      ctx.constraints = ctx.constraints or {}
      ctx.constraints[name] = constraint
    end
    return constraint
  end

  -- room_at: when the quotas and the told limits of a node have room for a job of this cost; in the past: now.
  function constraints.room_at(constraint, p, now, cost)
    local till = constraint.windows and p.quotas and quota.till(constraint.windows, p.quotas, now, cost) or 0
    return constraint.told and max(till, told.resumes_at(constraint.told, p, now, cost)) or till
  end

  -- ends_at: when the last part of a constraint ends, or ended; 0: nothing ends.
  function constraints.ends_at(constraint, p, now)
    local d, needs = constraint.slowdown, constraint.paid and constraint.paid.needs or 1
    local till = constraints.room_at(constraint, p, now, needs)
    return d and max(d.till, till) or till
  end

  -- hold: the due of a bucket with this constraint; by its pace it would be `pace`, nil: at once. Time until the end of
  -- a constraint is not lateness, whether it ended by itself or an operator ended it.
  function constraints.hold(ctx, constraint, p, pace)
    local till, now = constraints.ends_at(constraint, p, ctx.now), ctx.now
    if till > max(pace or now, now) then
      pace = pace or now
      -- The constraint before this one has ended: the bucket resumed then, whether anybody looked at it or not.
      if constraint.held and constraint.held <= now then pace = max(pace, constraint.held) end
      if constraint.pace ~= pace or constraint.held ~= till then
        constraint.pace, constraint.held = pace, till
        change(ctx, constraint)
      end
      return till
    end
    if not constraint.pace then return pace end
    local resumed_at = min(constraint.held, now)
    constraint.pace, constraint.held = nil, nil
    change(ctx, constraint)
    return pace and max(pace, resumed_at)
  end

  -- hold_budget: a budget that a constraint holds resumes at its end, so its `resumed_at` may lie in the future. A
  -- budget that is no longer held resumes now. For a budget without work only an end in the future counts: nothing has
  -- waited for it, and after any idle time a budget makes up for its catch-up. (A server that reads it afresh would
  -- conclude the same.) Replies whether the budget must be written.
  function constraints.hold_budget(ctx, b, p)
    local constraint, till = b.constraint, 0
    if not constraint and p.quotas then
      constraint = constraints.new(b.id)
      b.constraint = constraint
    end
    if constraint then till = constraints.ends_at(constraint, p, ctx.now) end
    if not b.state or b.state == ctx.k.rest then
      b.resumed_at = till > ctx.now and till or 0
      return false
    end
    if b.resumed_at > ctx.now and till < b.resumed_at then
      b.resumed_at = max(till, ctx.now)
      return true
    end
    -- An end in the past may be from before anything waited.
    if till > max(b.resumed_at, ctx.now) then b.resumed_at = till end
    return false
  end

  -- factor: what is left of the rate of a node.
  function constraints.factor(constraint, p)
    return constraint.slowdown and slowdown.factor(constraint.slowdown, p) or 1
  end

  function constraints.interval_us(constraint, p)
    return constraint.slowdown and p.count and slowdown.interval_us(p, slowdown.factor(constraint.slowdown, p))
      or p.interval_us
  end

  -- max_ahead_us: how far ahead the due of a node may lie: what its last job was charged. Further ahead the clock
  -- stepped back.
  function constraints.max_ahead_us(constraint, p)
    if not constraint then return p.job and max(p.interval_us, p.job.interval_us) or p.interval_us end
    return paid.max_ahead_us(constraint.paid, p, constraints.interval_us(constraint, p))
  end

  -- catch_up_us: the lateness that a node makes up for. Inside a budget, and unless `catch_up` was configured, that is
  -- at least what its own last job was charged, and twice the largest job that the budget above, `up`, has let out.
  function constraints.catch_up_us(p, constraint, up, now)
    local most, own, of_up = p.catch_up_us, constraint and constraint.paid, up and up.constraint and up.constraint.paid
    if not own and not of_up or not p.parent or p.catch_up_set then return most end
    if own then most = max(most, own.cost * p.interval_us) end
    if of_up and of_up.over > now then most = max(most, 2 * of_up.largest * up.p.interval_us) end
    return most
  end

  -- after: the due after a job of this cost.
  local function after(constraint, p, due, cost)
    local factor = constraints.factor(constraint, p)
    return factor < 1 and due + min(paid.LONGEST_US, cost * slowdown.interval_us(p, factor)) or paid.after(p, due, cost)
  end

  -- price: what a job of this cost, there since `since`, is charged by the rate of a node, in units; and the credit of
  -- the node after that, nil where it has none.
  function constraints.price(constraint, p, cost, since)
    local d = constraint and constraint.paid
    local credit = d and not p.ignores_cost and paid.credit_of(d, since) or 0
    if credit == 0 then return cost, d and d.credit ~= 0 and 0 or nil end
    return paid.price(p, credit, cost)
  end

  -- credit: the credit of a node with this constraint now, in us; 0: it has none.
  function constraints.credit(constraint, p, now)
    local d = constraint and constraint.paid
    return d and p.count and not p.ignores_cost and paid.credit_of(d, now) or 0
  end

  -- correct: a job that a node's rate took for `base_cost` units cost `real`. `due` is that of the node.
  function constraints.correct(ctx, constraint, p, due, base_cost, real)
    if base_cost == real or not p.count or p.ignores_cost then return end
    local d = constraint.paid or paid.new()
    constraint.paid = d
    paid.set_credit(d, ctx.now, due, paid.corrected(p, paid.credit_of(d, ctx.now), base_cost, real))
    change(ctx, constraint)
  end

  -- rests: a node with this due has no work any more: from its due on it pays debt.
  function constraints.rests(ctx, constraint, due)
    local d = constraint.paid
    if not d or d.credit >= 0 or d.idle_from > 0 then return end
    d.idle_from = max(ctx.now, due or 0)
    change(ctx, constraint)
  end

  -- pay: the next due of a node after a job that is charged so many units has left; `due` is its due before, no earlier
  -- than `from`. `credit`: see `price`.
  function constraints.pay(ctx, constraint, p, due, cost, from, credit)
    local d = constraint.paid
    if not d and cost == 1 and not p.job then return after(constraint, p, due, 1) end
    d = d or paid.new()
    if p.job then
      local unit_due, job_due = paid.dues(d, due)
      d.unit_due, d.job_due = after(constraint, p, max(unit_due, from), cost), rate.after(p.job, max(job_due, from))
      due = max(d.unit_due, d.job_due)
    else
      due = after(constraint, p, due, cost)
    end
    d.cost, d.needs, d.largest, d.over = cost, 1, max(d.largest, cost), due + ctx.now - from
    if credit then paid.set_credit(d, ctx.now, due, credit) end
    -- A bucket whose job was charged one interval needs no payment stored.
    constraint.paid = (cost > 1 or p.job or d.credit ~= 0 or chain.budget_of(constraint.id)) and d or nil
    change(ctx, constraint)
    return due
  end

  -- needs: the next job of a node costs more than one of its quotas has left: the node waits for the end of that
  -- window, `till`.
  function constraints.needs(ctx, constraint, cost, till)
    constraint.paid = constraint.paid or paid.new()
    constraint.paid.needs, constraint.paid.over = cost, max(constraint.paid.over, till)
    change(ctx, constraint)
  end

  -- changes_pace: whether two policies let jobs out at a different pace. A `job_rate` that was removed counts as a
  -- change.
  function constraints.changes_pace(old, p)
    if old.period_us ~= p.period_us or old.count ~= p.count then return true end
    local job, new = old.job, p.job
    if not job or not new then return job ~= new end
    return job.count ~= new.count or job.period_us ~= new.period_us
  end

  -- re_anchor: a due by the rate of `old` becomes a due by the rate of `p`: last job + its charge now. It is no earlier
  -- than now, unless it was due before: a faster rate does not make up for the past. Both dues of a payment are
  -- re-anchored too. A payment is kept as long as it counts, because it limits how far ahead the due may lie.
  function constraints.re_anchor(ctx, constraint, old, p, due)
    local factor, d, least =
      constraint and constraints.factor(constraint, old) or 1, constraint and constraint.paid, min(due, ctx.now)
    -- For the second time in a call.
    if d and d.follows == p and d.followed == ctx.calls then return max(d.unit_due, d.job_due, least) end
    local cost = d and d.cost or 1
    local unit_due, job_due = due, due
    if d and old.job then unit_due, job_due = paid.dues(d, due) end
    local left_us = unit_due
      - min(paid.LONGEST_US, cost * (factor < 1 and slowdown.interval_us(old, factor) or old.step))
    if d and p.ignores_cost then -- each job costs one from now on, and so does the last one
      d.cost, d.largest, cost = 1, min(d.largest, 1), 1
      change(ctx, constraint)
    end
    due = constraint and after(constraint, p, left_us, cost) or paid.after(p, left_us, cost)
    if not d then return max(due, least) end
    if old.job and p.job then
      local job_is_known = job_due > old.job.step
      d.unit_due, d.job_due = max(due, 0), job_is_known and rate.after(p.job, job_due - old.job.step) or 0
      d.follows, d.followed = p, ctx.calls
      due = max(d.unit_due, d.job_due)
    end
    due = max(due, least)
    if d.followed == ctx.calls or d.over < due + p.catch_up_us then
      d.over = max(d.over, due + p.catch_up_us)
      change(ctx, constraint)
    end
    return due
  end

  -- charge: a job of this cost has left a node: charge its quotas, told limits and slow-down. `more` says whether
  -- another job may wait now. For a budget it says whether the job had waited for it, and the wait of the others begins
  -- anew (`begin_wait`). `resumed_at` is when the budget last resumed: a pause before that is not counted as waiting.
  -- Replies when its quotas and told limits let out the next job; 0: now.
  function constraints.charge(ctx, constraint, p, more, cost, resumed_at)
    local d, till = constraint.slowdown, 0
    if p.quotas then
      constraint.windows = constraint.windows or {}
      till = quota.charge(constraint.windows, p.quotas, ctx.now, cost)
      if not constraint.changed then change(ctx, constraint) end
    end
    if constraint.told then
      told.charge(constraint.told, ctx.now, cost)
      till = max(till, told.resumes_at(constraint.told, p, ctx.now, 1))
      change(ctx, constraint)
    end
    if not d or d.factor >= 1 then return till end
    local waits = d.seen > 0 and (more or not resumed_at)
    slowdown.dispatched(d, waits and ctx.now - max(d.seen, resumed_at or 0) or 0)
    d.seen = more and ctx.now or 0
    change(ctx, constraint)
    return till
  end

  -- adjust: a job that left a node at `left_us` cost so many units more, or less.
  function constraints.adjust(ctx, constraint, p, left_us, units)
    if p.quotas and constraint.windows then quota.adjust(constraint.windows, p.quotas, left_us, units) end
    if constraint.told then told.adjust(constraint.told, ctx.now, left_us, units) end
  end

  -- begin_wait: something waits for a budget from now on; nothing did before.
  function constraints.begin_wait(ctx, constraint)
    local d = constraint.paid
    if d and d.idle_from > 0 then
      paid.set_credit(d, ctx.now, 0, paid.credit_of(d, ctx.now))
      change(ctx, constraint)
    end
    if not constraint.slowdown or constraint.slowdown.factor >= 1 then return end
    constraint.slowdown.seen = ctx.now
    change(ctx, constraint)
  end

  -- dispatched: the same for a bucket with this due; its rate is charged `charged` units (`price`). Replies when its
  -- next job may leave.
  function constraints.dispatched(ctx, constraint, p, due, more, cost, from, charged, credit)
    constraints.charge(ctx, constraint, p, more, cost)
    return constraints.hold(ctx, constraint, p, constraints.pay(ctx, constraint, p, due, charged, from, credit))
  end

  -- end_wait: no job of a bucket waits any more, for whatever reason: the time from now on is not counted as waiting.
  function constraints.end_wait(ctx, constraint, due)
    constraints.rests(ctx, constraint, due)
    if not constraint.slowdown or constraint.slowdown.seen == 0 then return end
    constraint.slowdown.seen = 0
    change(ctx, constraint)
  end

end
