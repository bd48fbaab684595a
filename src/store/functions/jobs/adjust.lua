-- needs: base, base.call, base.memory, pace.brake, pace.paid, pace.quota, queue.bucket, queue.places, queue.rejected,
--   queue.retries, tree.budget, tree.waiting
-- Adjust: what a job really cost, told while a worker holds it. The dues, turns and quotas that it was charged to move by the difference.
--
-- <prefix>:adjusted is sorted by time and names the entries that were adjusted, "<route> <entry id>": each is only once.

local adjust = {}
do
  local whole, digits = base.whole, base.digits

  local OWES_US = 3600000000          -- how far ahead an adjustment moves a due at most
  local KEPT_US = 8 * 86400000000     -- names of entries that a plain XACK finished
  local UNITS_MOST = 1000000000

  adjust.UNITS_MOST = UNITS_MOST

  -- units_of: a difference, as it is written; or nil.
  function adjust.units_of(text)
    local sign, number = match(text or '', '^([+-]?)(%d+)$')
    local units = whole(number)
    if not units or units > UNITS_MOST then return nil end
    return sign == '-' and -units or units
  end

  -- moved: a due after so many units more, or less: never before now, and at most an hour ahead. `left_us` is when the job left.
  local function moved(ctx, br, p, due, units, left_us, charged)
    local interval_us = brake.interval_us(br, p)
    local was = max(due or 0, left_us + charged * interval_us)
    if due and due > ctx.now then was = due end
    return max(ctx.now, min(was + units * interval_us, max(was, ctx.now + OWES_US)))
  end

  -- by_rate: the due of a node by its rate alone, of the one by both. What is known of a payment may lie too far ahead, where the clock
  -- stepped back since: the due of the node was put right then. A later due than both counts for both (pace/paid): it waited, or nothing is known.
  local function by_rate(ctx, br, p, due)
    if not p.job or not br.paid then return due end
    if not due then return min(br.paid.unit_due, ctx.now) end
    return (paid.dues(br.paid, due))
  end

  -- charge: what is known of the last payment of a node follows: its due, by the rate, is `due` now, and was `before` by both. Replies the due
  -- by both rates.
  local function charge(ctx, br, p, due, before)
    local d = br.paid or paid.fresh()
    d.cost = max(d.cost, ceil((due - ctx.now) / max(1, brake.interval_us(br, p))))
    if p.job then d.unit_due, due = due, max(due, min(d.job_due, before or ctx.now)) end
    d.over = max(d.over, due + p.catch_up_us)
    br.paid = d
    brake.change(ctx, br)
    return due
  end

  -- without_over: a payment that is over may be forgotten at any time, and is from now on, as when a job leaves.
  local function without_over(ctx, br)
    if br.paid and br.paid.over <= ctx.now then br.paid = nil end
    return br
  end

  -- of_budgets: the budgets above a bucket, and whose turn it is there.
  local function of_budgets(ctx, s, units, left_us, charged)
    local id, p = s.bucket, s.p
    for _, b in ipairs(budget.above(ctx, p.parent)) do
      local step = (paid.units(b.p, max(1, charged + units)) - paid.units(b.p, charged)) / p.weight
      if b.tags[id] then b.tags[id] = b.tags[id] + step end
      if id == s.bucket then
        if s.place == waiting.key(ctx, b.id) then s.ends = waiting.later(waiting.ends_of(ctx, s.place, id, s.stored_due), step) end
      else
        budget.turn_moves(ctx, budget.get(ctx, id), step)
      end
      b.brake, b.is_open = without_over(ctx, b.brake or brake.fresh(b.id)), nil
      if b.p.count and not b.p.ignores_cost then
        local due = by_rate(ctx, b.brake, b.p, b.due)
        b.due = charge(ctx, b.brake, b.p, moved(ctx, b.brake, b.p, due, units, left_us, charged), b.due)
      end
      if b.p.quotas and b.brake.windows then quota.adjust(b.brake.windows, b.p.quotas, left_us, units) end
      budget.brake_changed(ctx, b)
      brake.hold_budget(ctx, b, b.p)
      budget.put_right(ctx, b.id)
      id, p = b.id, b.p
    end
  end

  -- apply: a job, whose entry has these fields, cost so many units more, or less.
  -- reads, writes  as a look at its bucket, and the budgets above
  local function apply(ctx, fields, units)
    local name, charged, left_us = fields.bucket, whole(fields.cost or '') or 1, whole(fields.at_us or '') or ctx.now
    units = max(units, -charged)
    if units == 0 then return end
    local stands, dues = places.load(ctx, { name })
    local queue, level = ctx.k.queues .. name, tonumber(call('HGET', ctx.k.level, name) or nil)
    local s = bucket.decide(ctx, {}, name, queue, bucket.length_of(ctx, queue) or 0, stands[1], dues[1], level)
    local p, br = s.p, without_over(ctx, brake.give(ctx, name, s.p))
    s.brake = br
    if p.parent and not p.refused then of_budgets(ctx, s, units, left_us, charged) end
    if p.quotas and br.windows then quota.adjust(br.windows, p.quotas, left_us, units) end
    -- What a quota or a slow-down holds waits until that ends, whatever its job cost. Of one at rest no due is known that is over.
    local pace = br.pace or s.due
    if pace == ctx.now and s.place == ctx.k.rest then pace = nil end
    local due = moved(ctx, br, p, by_rate(ctx, br, p, pace), units, left_us, charged)
    s.due = brake.hold(ctx, br, p, charge(ctx, br, p, due, pace))
    s.retry_ready = retries.has_ended(ctx, name)
    if not rejected.settle(ctx, s) then bucket.park(ctx, s) else places.commit(ctx, s, bucket.place(ctx, s)) end
    memory.drop(ctx.memory, name)
  end

  -- entry: the same of an entry that is pending, once: `units_for` gets what it was charged. Replies whether it was.
  function adjust.entry(ctx, route_name, id, fields, units_for)
    local name = route_name .. ' ' .. id
    if call('ZADD', ctx.k.adjusted, 'NX', ctx.now_text, name) == 0 then return false end
    call('ZREMRANGEBYSCORE', ctx.k.adjusted, '-inf', digits(ctx.now - KEPT_US))
    apply(ctx, fields, units_for(whole(fields.cost or '') or 1))
    places.flush(ctx)
    context.wake(ctx.k) -- a due may be earlier
    return true
  end

  -- done: these entries of a route are finished.
  function adjust.done(k, route_name, ids)
    local gone = {}
    for i, id in ipairs(ids) do gone[i] = route_name .. ' ' .. id end
    pcall_redis('ZREM', k.adjusted, unpack(gone))
  end
end
