-- needs: base, context, pace.paid, pace.quota, pace.rate, pace.slowdown, policy.chain, policy.record
-- Constraints: what stops a node besides its own rate and catch-up: the windows of its quotas (pace/quota), its
-- slow-down (pace/slowdown), and the charge for its last job (pace/paid).
--
-- <prefix>:slow has the slow-downs, <prefix>:windows what was used of quotas, <prefix>:paid the payments. <prefix>:over
-- has for each node when the first of them can be dropped. Each text begins with the version of its format and
-- "<pace>/<held>" (see below). The field `brakes` of the policy key says what is stored at all ('s' a slow-down, 'p' a
-- payment, 'q' a window), so that nothing is read where nothing is stored.
--
-- The constraint of a node, `constraint`:
--   id                       the node
--   slowdown, windows, paid  what is stored of it; each may be missing
--   pace, held               of a bucket that a constraint holds: its due without the constraint, and when the
--   constraint ends

local constraints = {}
do
  local digits = base.digits

  local VERSION = '1'
  local HEAD = '^(%d+) (%d+)/(%d+) ?(.*)$'
  local FORGET_MOST = 100 -- nodes in a call

  -- new: the constraint of a node of which nothing is stored.
  function constraints.new(id) return { id = id } end

  -- part_of: a part of a constraint, as one of the keys has it; nil where it has none.
  local function part_of(ctx, constraint, text, key, decode)
    if not text then return nil end
    local version, pace, held, body = match(text, HEAD)
    if version ~= VERSION then
      context.note(ctx, 'newer', key)
      constraint.is_newer = true -- it is left alone
      return nil
    end
    if pace ~= '0' then constraint.pace, constraint.held = pace + 0, held + 0 end
    return decode(body)
  end

  local function expires_at(constraint)
    local over = huge
    if constraint.slowdown then over = slowdown.expires_at(constraint.slowdown) end
    if constraint.windows then over = min(over, quota.expires_at(constraint.windows)) end
    if constraint.paid then over = min(over, constraint.paid.over) end
    return over
  end

  -- change: mark a constraint to be written at the end of the call.
  local function change(ctx, constraint)
    if constraint.changed then return end
    ctx.changed_constraints = ctx.changed_constraints or {}
    constraint.changed, ctx.changed_constraints[#ctx.changed_constraints + 1] = true, constraint
  end
  constraints.change = change

  -- reconcile: bring a remembered slow-down up to date, as if it had been read now. Replies whether it must be written.
  function constraints.reconcile(ctx, constraint)
    if not constraint.slowdown then return false end
    local changed = slowdown.reconcile(constraint.slowdown, ctx.now)
    if slowdown.expires_at(constraint.slowdown) <= ctx.now then constraint.slowdown = nil end
    if changed then change(ctx, constraint) end
    return changed
  end

  local function decode(ctx, id, slow_text, windows_text, paid_text)
    local constraint = { id = id }
    constraint.slowdown = part_of(ctx, constraint, slow_text, ctx.k.slow, slowdown.decode)
    constraint.windows = part_of(ctx, constraint, windows_text, ctx.k.windows, quota.decode)
    constraint.paid = part_of(ctx, constraint, paid_text, ctx.k.paid, paid.decode)
    constraint.had_slow, constraint.had_windows, constraint.had_paid, constraint.over =
      slow_text and true, windows_text and true, paid_text and true, expires_at(constraint)
    if constraint.slowdown and slowdown.reconcile(constraint.slowdown, ctx.now) then change(ctx, constraint) end
    return constraint
  end

  -- read: the constraints of some nodes, in their order; false where nothing is stored.
  -- reads   slow, windows, paid      cost  1 call each, where there are any
  function constraints.read(ctx, ids)
    local slows = ctx.has_slow and call('HMGET', ctx.k.slow, unpack(ids)) or {}
    local windows = ctx.has_windows and call('HMGET', ctx.k.windows, unpack(ids)) or {}
    local payments = ctx.has_paid and call('HMGET', ctx.k.paid, unpack(ids)) or {}
    local found = {}
    for i = 1, #ids do
      local slow_text, windows_text, paid_text = slows[i], windows[i], payments[i]
      found[i] = (slow_text or windows_text or paid_text) and decode(ctx, ids[i], slow_text, windows_text, paid_text)
        or false
    end
    return found
  end

  -- expect: these nodes are needed next: read their constraints at once. ctx.slowed has the buckets of which a
  -- slow-down or a payment is stored. Budgets are left out: tree/budget keeps their constraints, and a second copy
  -- would overwrite them.
  function constraints.expect(ctx, names)
    if not ctx.has_slow and not ctx.has_windows and not ctx.has_paid then return end
    local known, missing = ctx.constraints or {}, {}
    for _, name in ipairs(names) do
      if known[name] == nil and not chain.budget_of(name) then missing[#missing + 1] = name end
    end
    if not missing[1] then return end
    ctx.constraints = known
    local found = constraints.read(ctx, missing)
    for i = 1, #missing do
      local constraint = found[i]
      known[missing[i]] = constraint
      if constraint and (constraint.slowdown or constraint.paid) then
        ctx.slowed = ctx.slowed or {}
        ctx.slowed[missing[i]] = true
      end
    end
  end

  -- of: the constraint of a bucket, or nil where it has none.
  function constraints.of(ctx, name, p)
    local is_any = ctx.has_slow or ctx.has_windows or ctx.has_paid or ctx.constraints
    if not is_any and not p.quotas and not p.job then return nil end
    ctx.constraints = ctx.constraints or {}
    local constraint = ctx.constraints[name]
    if constraint == nil then
      constraint = constraints.read(ctx, { name })[1]
      ctx.constraints[name] = constraint
    end
    if not constraint and (p.quotas or p.job) then
      constraint = constraints.new(name)
      ctx.constraints[name] = constraint
    end
    return constraint or nil
  end

  -- is_slowed: whether a slow-down or a payment of a bucket is stored: then it takes the full path.
  function constraints.is_slowed(ctx, name, p)
    local constraint = (ctx.has_slow or ctx.has_paid) and constraints.of(ctx, name, p)
    return constraint and (constraint.slowdown or constraint.paid) ~= nil
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

  -- ends_at: when the last part of a constraint ends, or ended; 0: nothing ends.
  function constraints.ends_at(constraint, p, now)
    local till = constraint.slowdown and constraint.slowdown.till or 0
    if constraint.windows and p.quotas then
      till = max(till, quota.till(constraint.windows, p.quotas, now, constraint.paid and constraint.paid.needs or 1))
    end
    return till
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

  -- pay: the next due of a node after a job of this cost has left; `due` is its due before, no earlier than `from`.
  function constraints.pay(ctx, constraint, p, due, cost, from)
    local d = constraint.paid
    if not d and cost == 1 and not p.job then return after(constraint, p, due, 1) end
    if not d or d.over <= ctx.now then d = paid.new() end
    if p.job then
      local unit_due, job_due = paid.dues(d, due)
      d.unit_due, d.job_due = after(constraint, p, max(unit_due, from), cost), rate.after(p.job, max(job_due, from))
      due = max(d.unit_due, d.job_due)
    else
      due = after(constraint, p, due, cost)
    end
    d.cost, d.needs, d.largest, d.over = cost, 1, max(d.largest, cost), due + ctx.now - from
    -- A bucket whose job was charged one interval needs no payment stored.
    constraint.paid = (cost > 1 or p.job or chain.budget_of(constraint.id)) and d or nil
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

  -- charge: a job of this cost has left a node: charge its quotas and its slow-down. `more` says whether another job
  -- may wait now. For a budget it says whether the job had waited for it, and the wait of the others begins anew
  -- (`begin_wait`). `resumed_at` is when the budget last resumed: a pause before that is not counted as waiting.
  -- Replies when the last of the used-up windows ends; 0: none is used up.
  function constraints.charge(ctx, constraint, p, more, cost, resumed_at)
    local d, till = constraint.slowdown, 0
    if p.quotas then
      constraint.windows = constraint.windows or {}
      till = quota.charge(constraint.windows, p.quotas, ctx.now, cost)
      if not constraint.changed then change(ctx, constraint) end
    end
    if not d or d.factor >= 1 then return till end
    local waits = d.seen > 0 and (more or not resumed_at)
    slowdown.dispatched(d, waits and ctx.now - max(d.seen, resumed_at or 0) or 0)
    d.seen = more and ctx.now or 0
    change(ctx, constraint)
    return till
  end

  -- begin_wait: something waits for a budget from now on; nothing did before.
  function constraints.begin_wait(ctx, constraint)
    if not constraint.slowdown or constraint.slowdown.factor >= 1 then return end
    constraint.slowdown.seen = ctx.now
    change(ctx, constraint)
  end

  -- dispatched: the same for a bucket with this due. Replies when its next job may leave.
  function constraints.dispatched(ctx, constraint, p, due, more, cost, from)
    constraints.charge(ctx, constraint, p, more, cost)
    return constraints.hold(ctx, constraint, p, constraints.pay(ctx, constraint, p, due, cost, from))
  end

  -- end_wait: no job of a bucket waits any more, for whatever reason: the time from now on is not counted as waiting.
  function constraints.end_wait(ctx, constraint)
    if not constraint.slowdown or constraint.slowdown.seen == 0 then return end
    constraint.slowdown.seen = 0
    change(ctx, constraint)
  end

  -- put: note the text of a part of a constraint to be written. Without a text it is removed, where it `had` been
  -- stored.
  local function put(add, gone, constraint, text, had)
    if text then
      local head = constraint.pace and digits(constraint.pace) .. '/' .. digits(constraint.held) or '0/0'
      add[#add + 1], add[#add + 2] = constraint.id, VERSION .. ' ' .. head .. ' ' .. text
    elseif had then
      gone[#gone + 1] = constraint.id
    end
  end

  -- write: remove the old fields or members of a key, and add the new ones.
  local function write(key, add_by, add, remove_by, gone)
    base.write(call, remove_by, key, gone)
    base.write(call, add_by, key, add)
  end

  -- flag: note in the policy key what is stored.
  local function flag(ctx, has_slow, has_windows, has_paid)
    if has_slow == ctx.has_slow and has_windows == ctx.has_windows and has_paid == ctx.has_paid then return end
    ctx.has_slow, ctx.has_windows, ctx.has_paid = has_slow, has_windows, has_paid
    local text = (has_slow and 's' or '') .. (has_paid and 'p' or '') .. (has_windows and 'q' or '')
    if text == '' then call('HDEL', ctx.k.policy, 'brakes') else call('HSET', ctx.k.policy, 'brakes', text) end
  end

  -- flush: write what changed.
  -- writes  slow, windows, paid, over, the policy key      cost  at most 9 calls
  function constraints.flush(ctx)
    local slows, slows_gone, windows, windows_gone, over, over_gone = {}, {}, {}, {}, {}, {}
    local payments, payments_gone = {}, {}
    for _, constraint in ipairs(ctx.changed_constraints) do
      constraint.changed = false
      if not constraint.is_newer then
        if constraint.slowdown and slowdown.expires_at(constraint.slowdown) <= ctx.now then
          constraint.slowdown = nil
        end
        if constraint.paid and constraint.paid.over <= ctx.now then constraint.paid = nil end
        local text = constraint.windows and quota.encode(constraint.windows, ctx.now)
        if text == '' then constraint.windows, text = nil, nil end
        put(windows, windows_gone, constraint, text, constraint.had_windows)
        text = constraint.slowdown and slowdown.encode(constraint.slowdown)
        put(slows, slows_gone, constraint, text, constraint.had_slow)
        text = constraint.paid and paid.encode(constraint.paid)
        put(payments, payments_gone, constraint, text, constraint.had_paid)
        constraint.had_slow, constraint.had_windows, constraint.had_paid =
          constraint.slowdown ~= nil, constraint.windows ~= nil, constraint.paid ~= nil
        local at = expires_at(constraint)
        if at == huge then
          over_gone[#over_gone + 1] = constraint.id
        elseif at ~= constraint.over then
          over[#over + 1], over[#over + 2] = digits(at), constraint.id
        end
        constraint.over = at
        if at < ctx.memory.over_us then ctx.memory.over_us = at end
      end
    end
    ctx.changed_constraints = false
    write(ctx.k.slow, 'HSET', slows, 'HDEL', slows_gone)
    write(ctx.k.windows, 'HSET', windows, 'HDEL', windows_gone)
    write(ctx.k.paid, 'HSET', payments, 'HDEL', payments_gone)
    write(ctx.k.over, 'ZADD', over, 'ZREM', over_gone)
    flag(ctx, ctx.has_slow or slows[1] ~= nil, ctx.has_windows or windows[1] ~= nil, ctx.has_paid or payments[1] ~= nil)
  end

  -- drop_expired: drop constraints that have expired. Replies whether more could be dropped.
  -- reads, writes  slow, windows, paid, over, the policy key      cost  O(FORGET_MOST), where something has expired;
  -- else none
  function constraints.drop_expired(ctx)
    local m = ctx.memory
    if not ctx.has_slow and not ctx.has_windows and not ctx.has_paid or ctx.now < m.over_us then return false end
    local over = ctx.k.over
    local ids = call('ZRANGE', over, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', FORGET_MOST)
    if ids[1] then
      for i, constraint in ipairs(constraints.read(ctx, ids)) do
        if constraint and not constraint.is_newer then
          constraint.over = nil -- whatever is written there
          change(ctx, constraint)
        else
          call('ZREM', over, ids[i])
        end
      end
      if ctx.changed_constraints then constraints.flush(ctx) end
    end
    m.over_us = base.first_score(over)
    flag(ctx, call('EXISTS', ctx.k.slow) == 1, call('EXISTS', ctx.k.windows) == 1, call('EXISTS', ctx.k.paid) == 1)
    return #ids == FORGET_MOST
  end

  -- page: one page of the slow-downs in force: { id, d, p } each, and the next cursor.
  function constraints.page(ctx, cursor)
    local page, list = call('HSCAN', ctx.k.slow, cursor, 'COUNT', ctx.limits.batch), {}
    local ids = base.names_in(page[2])
    for i, constraint in ipairs(ids[1] and constraints.read(ctx, ids) or {}) do
      local p = record.policy_of(ctx.rec, ids[i])
      if p and constraint and constraint.slowdown and slowdown.applies(constraint.slowdown, p, ctx.now) then
        list[#list + 1] = { id = ids[i], d = constraint.slowdown, p = p }
      end
    end
    return list, page[1]
  end
end
