-- needs: base, base.call, pace.paid, pace.quota, pace.rate, pace.slow, policy.chain, policy.record
-- Brakes: what keeps a node from going besides its plain pace: the windows of its quotas (pace/quota), its slow-down (pace/slow), and what its
-- last job paid (pace/paid).
--
-- <prefix>:slow keeps the slow-downs, <prefix>:windows what was used of quotas, <prefix>:paid the payments, and <prefix>:over says from when
-- on something of a node is worth nothing. Each text opens with the version of its format and "<pace>/<held>" (see below). The field
-- `brakes` of the policy key says whether anything is stored at all ('s' a slow-down, 'p' a payment, 'q' a window), so where nothing is
-- nothing is read.
--
-- The state of the brakes of a node, `br`:
--   id, slow, windows, paid   the node, and what is stored of it; each may be missing
--   pace, held           of a bucket that stands where it does because of a brake: its due without that, and when the brake ends

local brake = {}
do
  local digits = base.digits

  local VERSION = '1'
  local HEAD = '^(%d+) (%d+)/(%d+) ?(.*)$'
  local FORGET_MOST = 100 -- nodes in a call

  -- fresh: the brakes of a node of which nothing is stored.
  function brake.fresh(id) return { id = id } end

  local function body_of(ctx, br, text, key)
    local version, pace, held, body = match(text, HEAD)
    if version ~= VERSION then
      context.note(ctx, 'newer', key)
      br.is_newer = true -- it is left alone
      return nil
    end
    if pace ~= '0' then br.pace, br.held = pace + 0, held + 0 end
    return body
  end

  local function over_of(br)
    local over = huge
    if br.slow then over = slow.over(br.slow) end
    if br.windows then over = min(over, quota.over(br.windows)) end
    if br.paid then over = min(over, br.paid.over) end
    return over
  end

  -- change: something of it is to be written at the end of the call.
  local function change(ctx, br)
    if br.changed then return end
    ctx.braked = ctx.braked or {}
    br.changed, ctx.braked[#ctx.braked + 1] = true, br
  end
  brake.change = change

  -- put_right: what was remembered of a slow-down is as if it had been read now. Replies whether anything is to be written.
  function brake.put_right(ctx, br)
    if not br.slow then return false end
    local changed = slow.put_right(br.slow, ctx.now)
    if slow.over(br.slow) <= ctx.now then br.slow = nil end
    if changed then change(ctx, br) end
    return changed
  end

  local function decode(ctx, id, slow_text, windows_text, paid_text)
    local br = { id = id }
    local body = slow_text and body_of(ctx, br, slow_text, ctx.k.slow)
    br.slow = body and slow.decode(body) or nil
    body = windows_text and body_of(ctx, br, windows_text, ctx.k.windows)
    br.windows = body and quota.decode(body) or nil
    body = paid_text and body_of(ctx, br, paid_text, ctx.k.paid)
    br.paid = body and paid.decode(body) or nil
    br.had_slow, br.had_windows, br.had_paid, br.over = slow_text and true, windows_text and true, paid_text and true, over_of(br)
    if br.slow and slow.put_right(br.slow, ctx.now) then change(ctx, br) end
    return br
  end

  -- read: the brakes of some nodes, in their order; false where nothing is stored.
  -- reads   slow, windows, paid      cost  1 call each, where there are any
  function brake.read(ctx, ids)
    local slows = ctx.has_slow and call('HMGET', ctx.k.slow, unpack(ids)) or {}
    local windows = ctx.has_windows and call('HMGET', ctx.k.windows, unpack(ids)) or {}
    local payments = ctx.has_paid and call('HMGET', ctx.k.paid, unpack(ids)) or {}
    local found = {}
    for i = 1, #ids do
      local slow_text, windows_text, paid_text = slows[i], windows[i], payments[i]
      found[i] = (slow_text or windows_text or paid_text) and decode(ctx, ids[i], slow_text, windows_text, paid_text) or false
    end
    return found
  end

  -- expect: these nodes are asked for next. ctx.slowed has the buckets of which something is stored of a slow-down or a payment. Budgets are left out:
  -- they keep their brakes themselves (tree/budget), and a second copy would be written over them.
  function brake.expect(ctx, names)
    if not ctx.has_slow and not ctx.has_windows and not ctx.has_paid then return end
    local known, missing = ctx.brakes or {}, {}
    for _, name in ipairs(names) do
      if known[name] == nil and not chain.budget_of(name) then missing[#missing + 1] = name end
    end
    if not missing[1] then return end
    ctx.brakes = known
    local found = brake.read(ctx, missing)
    for i = 1, #missing do
      local br = found[i]
      known[missing[i]] = br
      if br and (br.slow or br.paid) then
        ctx.slowed = ctx.slowed or {}
        ctx.slowed[missing[i]] = true
      end
    end
  end

  -- of: the brakes of a bucket, or nil where it has none.
  function brake.of(ctx, name, p)
    if not ctx.has_slow and not ctx.has_windows and not ctx.has_paid and not ctx.brakes and not p.quotas and not p.job then return nil end
    ctx.brakes = ctx.brakes or {}
    local br = ctx.brakes[name]
    if br == nil then
      br = brake.read(ctx, { name })[1]
      ctx.brakes[name] = br
    end
    if not br and (p.quotas or p.job) then
      br = brake.fresh(name)
      ctx.brakes[name] = br
    end
    return br or nil
  end

  -- is_slowed: whether anything is stored of a slow-down or a payment of a bucket: then it goes no plain way.
  function brake.is_slowed(ctx, name, p)
    local br = (ctx.has_slow or ctx.has_paid) and brake.of(ctx, name, p)
    return br and (br.slow or br.paid) ~= nil
  end

  -- give: the brakes of a bucket that is slowed down: they are made where there are none.
  function brake.give(ctx, name, p)
    local br = brake.of(ctx, name, p)
    if not br then
      br = brake.fresh(name)
      ctx.brakes = ctx.brakes or {}
      ctx.brakes[name] = br
    end
    return br
  end

  -- till: when the last of them ends, or ended; 0: there is none.
  function brake.till(br, p, now)
    local till = br.slow and br.slow.till or 0
    if br.windows and p.quotas then till = max(till, quota.till(br.windows, p.quotas, now, br.paid and br.paid.needs or 1)) end
    return till
  end

  -- hold: when a bucket may go whose pace lets it go at `pace`, nil: at once. The end of a brake is no lateness, and neither is the end
  -- that somebody made.
  function brake.hold(ctx, br, p, pace)
    local till, now = brake.till(br, p, ctx.now), ctx.now
    if till > max(pace or now, now) then
      pace = pace or now
      if br.pace ~= pace or br.held ~= till then
        br.pace, br.held = pace, till
        change(ctx, br)
      end
      return till
    end
    if not br.pace then return pace end
    local resumed_at = min(br.held, now)
    br.pace, br.held = nil, nil
    change(ctx, br)
    return pace and max(pace, resumed_at)
  end

  -- hold_budget: a budget whose brake holds it goes on at the end of that, so its `resumed_at` may be still to come. One that it holds no
  -- more goes on now. Of one without work only an end that is still to come counts: nothing has waited for it, and after any idle time a
  -- budget makes up for its catch-up. (Who read it in a fresh memory would find no more than that either.) Replies whether that is to be
  -- written.
  function brake.hold_budget(ctx, b, p)
    local br, till = b.brake, 0
    if not br and p.quotas then
      br = brake.fresh(b.id)
      b.brake = br
    end
    if br then till = brake.till(br, p, ctx.now) end
    if not b.place or b.place == ctx.k.rest then
      b.resumed_at = till > ctx.now and till or 0
      return false
    end
    if b.resumed_at > ctx.now and till < b.resumed_at then
      b.resumed_at = max(till, ctx.now)
      return true
    end
    if till > max(b.resumed_at, ctx.now) then b.resumed_at = till end -- one that is over may have ended before anything waited
    return false
  end

  -- factor: what is left of the rate of a node.
  function brake.factor(br, p)
    return br.slow and slow.factor(br.slow, p) or 1
  end

  function brake.interval_us(br, p)
    return br.slow and p.count and slow.interval_us(p, slow.factor(br.slow, p)) or p.interval_us
  end

  -- reach_us: how far ahead the due of a node may lie: what its last job paid. Further ahead the clock stepped back.
  function brake.reach_us(br, p)
    if not br then return p.job and max(p.interval_us, p.job.interval_us) or p.interval_us end
    return paid.reach_us(br.paid, p, brake.interval_us(br, p))
  end

  -- catch_up_us: the lateness that a node makes up for. Inside a budget it is as much as its own last job paid, or twice the largest job that
  -- the budget above, `up`, has let out, unless it was written.
  function brake.catch_up_us(p, br, up, now)
    local most, own, of_up = p.catch_up_us, br and br.paid, up and up.brake and up.brake.paid
    if not own and not of_up or not p.parent or p.catch_up_set then return most end
    if own then most = max(most, own.cost * p.interval_us) end
    if of_up and of_up.over > now then most = max(most, 2 * of_up.largest * up.p.interval_us) end
    return most
  end

  -- after: the due after a job of this cost.
  local function after(br, p, due, cost)
    local factor = brake.factor(br, p)
    return factor < 1 and due + min(paid.LONGEST_US, cost * slow.interval_us(p, factor)) or paid.after(p, due, cost)
  end

  -- pay: the due of a node after a job of this cost has left in return for `due`, which is no earlier than `from`.
  function brake.pay(ctx, br, p, due, cost, from)
    local d = br.paid
    if not d and cost == 1 and not p.job then return after(br, p, due, 1) end
    if not d or d.over <= ctx.now then d = paid.fresh() end
    if p.job then
      local unit_due, job_due = paid.dues(d, due)
      d.unit_due, d.job_due = after(br, p, max(unit_due, from), cost), rate.after(p.job, max(job_due, from))
      due = max(d.unit_due, d.job_due)
    else
      due = after(br, p, due, cost)
    end
    d.cost, d.needs, d.largest, d.over = cost, 1, max(d.largest, cost), due + ctx.now - from
    -- Of a bucket nothing needs to be known of a job that paid one interval.
    br.paid = (cost > 1 or p.job or chain.budget_of(br.id)) and d or nil
    change(ctx, br)
    return due
  end

  -- needs: the next job of a node costs more than one of its quotas has left: the node waits for the end of that window, `till`.
  function brake.needs(ctx, br, cost, till)
    br.paid = br.paid or paid.fresh()
    br.paid.needs, br.paid.over = cost, max(br.paid.over, till)
    change(ctx, br)
  end

  -- is_other_pace: whether two policies let jobs out at another pace. A `job_rate` that was taken away is as one that never was.
  function brake.is_other_pace(old, p)
    if old.period_us ~= p.period_us or old.count ~= p.count then return true end
    local job, new = old.job, p.job
    if not job or not new then return job ~= new end
    return job.count ~= new.count or job.period_us ~= new.period_us
  end

  -- re_anchor: a due that followed the rate of `old` follows that of `p`: last job + what that pays now, but no earlier than now, unless it
  -- was due before: a faster rate makes up for nothing that was not promised then. So do both dues of a payment, and what was paid is known
  -- as long as that counts, for it says how far ahead the due may lie.
  function brake.re_anchor(ctx, br, old, p, due)
    local factor, d, least = br and brake.factor(br, old) or 1, br and br.paid, min(due, ctx.now)
    if d and d.follows == p and d.followed == ctx.calls then return max(d.unit_due, d.job_due, least) end -- for the second time in a call
    local cost = d and d.cost or 1
    local unit_due, job_due = due, due
    if d and old.job then unit_due, job_due = paid.dues(d, due) end
    local left_us = unit_due - min(paid.LONGEST_US, cost * (factor < 1 and slow.interval_us(old, factor) or old.step))
    if d and p.ignores_cost then -- each job pays as one from now on, and so has that one
      d.cost, d.largest, cost = 1, min(d.largest, 1), 1
      change(ctx, br)
    end
    due = br and after(br, p, left_us, cost) or paid.after(p, left_us, cost)
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
      change(ctx, br)
    end
    return due
  end

  -- charge: a job of the node has left, of this cost. `more` says whether another one may wait now. Of a budget it is whether the job had waited
  -- for it, and what waits from then on begins anew (`has_waiting`); `resumed_at` is when it last went on: what waited by order until then does not count.
  -- Replies when the last of its windows ends that are used up by now; 0: none is.
  function brake.charge(ctx, br, p, more, cost, resumed_at)
    local d, till = br.slow, 0
    if p.quotas then
      br.windows = br.windows or {}
      till = quota.charge(br.windows, p.quotas, ctx.now, cost)
      if not br.changed then change(ctx, br) end
    end
    if not d or d.factor >= 1 then return till end
    local waits = d.seen > 0 and (more or not resumed_at)
    slow.left(d, ctx.now, waits and ctx.now - max(d.seen, resumed_at or 0) or 0)
    d.seen = more and ctx.now or 0
    change(ctx, br)
    return till
  end

  -- has_waiting: something waits for a budget from now on, for which nothing did.
  function brake.has_waiting(ctx, br)
    if not br.slow or br.slow.factor >= 1 then return end
    br.slow.seen = ctx.now
    change(ctx, br)
  end

  -- left: the same of a bucket, in return for `due`. Replies when its next job may leave.
  function brake.left(ctx, br, p, due, more, cost, from)
    brake.charge(ctx, br, p, more, cost)
    return brake.hold(ctx, br, p, brake.pay(ctx, br, p, due, cost, from))
  end

  -- rests: nothing of a bucket waits any more, for whatever reason: the time from now on is none in which jobs wait.
  function brake.rests(ctx, br)
    if not br.slow or br.slow.seen == 0 then return end
    br.slow.seen = 0
    change(ctx, br)
  end

  local function head_of(br)
    return VERSION .. ' ' .. (br.pace and digits(br.pace) .. '/' .. digits(br.held) or '0/0')
  end

  -- write: what is added to a key, and what leaves it.
  local function write(key, add_by, add, remove_by, gone)
    base.write(call, remove_by, key, gone)
    base.write(call, add_by, key, add)
  end

  -- flag: say what is stored.
  local function flag(ctx, has_slow, has_windows, has_paid)
    if has_slow == ctx.has_slow and has_windows == ctx.has_windows and has_paid == ctx.has_paid then return end
    ctx.has_slow, ctx.has_windows, ctx.has_paid = has_slow, has_windows, has_paid
    local text = (has_slow and 's' or '') .. (has_paid and 'p' or '') .. (has_windows and 'q' or '')
    if text == '' then call('HDEL', ctx.k.policy, 'brakes') else call('HSET', ctx.k.policy, 'brakes', text) end
  end

  -- flush: write what changed.
  -- writes  slow, windows, paid, over, the policy key      cost  at most 8 calls
  function brake.flush(ctx)
    local slows, slows_gone, windows, windows_gone, over, over_gone = {}, {}, {}, {}, {}, {}
    local payments, payments_gone = {}, {}
    for _, br in ipairs(ctx.braked) do
      br.changed = false
      if not br.is_newer then
        if br.slow and slow.over(br.slow) <= ctx.now then br.slow = nil end
        local text = br.windows and quota.encode(br.windows, ctx.now) or ''
        if text == '' then br.windows = nil end
        if br.slow then
          slows[#slows + 1], slows[#slows + 2] = br.id, head_of(br) .. ' ' .. slow.encode(br.slow)
        elseif br.had_slow then
          slows_gone[#slows_gone + 1] = br.id
        end
        if br.windows then
          windows[#windows + 1], windows[#windows + 2] = br.id, head_of(br) .. ' ' .. text
        elseif br.had_windows then
          windows_gone[#windows_gone + 1] = br.id
        end
        if br.paid and br.paid.over <= ctx.now then br.paid = nil end
        if br.paid then
          payments[#payments + 1], payments[#payments + 2] = br.id, head_of(br) .. ' ' .. paid.encode(br.paid)
        elseif br.had_paid then
          payments_gone[#payments_gone + 1] = br.id
        end
        br.had_slow, br.had_windows, br.had_paid = br.slow ~= nil, br.windows ~= nil, br.paid ~= nil
        local at = over_of(br)
        if at == huge then
          over_gone[#over_gone + 1] = br.id
        elseif at ~= br.over then
          over[#over + 1], over[#over + 2] = digits(at), br.id
        end
        br.over = at
        if at < ctx.memory.over_us then ctx.memory.over_us = at end
      end
    end
    ctx.braked = false
    write(ctx.k.slow, 'HSET', slows, 'HDEL', slows_gone)
    write(ctx.k.windows, 'HSET', windows, 'HDEL', windows_gone)
    write(ctx.k.paid, 'HSET', payments, 'HDEL', payments_gone)
    write(ctx.k.over, 'ZADD', over, 'ZREM', over_gone)
    flag(ctx, ctx.has_slow or slows[1] ~= nil, ctx.has_windows or windows[1] ~= nil, ctx.has_paid or payments[1] ~= nil)
  end

  -- forget: drop what is worth nothing any more. Replies whether more could be dropped.
  -- reads, writes  slow, windows, paid, over, the policy key      cost  O(FORGET_MOST), where something is over; else none
  function brake.forget(ctx)
    local m = ctx.memory
    if not ctx.has_slow and not ctx.has_windows and not ctx.has_paid or ctx.now < m.over_us then return false end
    local over = ctx.k.over
    local ids = call('ZRANGE', over, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', FORGET_MOST)
    if ids[1] then
      for i, br in ipairs(brake.read(ctx, ids)) do
        if br and not br.is_newer then
          br.over = nil -- whatever is written there
          change(ctx, br)
        else
          call('ZREM', over, ids[i])
        end
      end
      if ctx.braked then brake.flush(ctx) end
    end
    local first = call('ZRANGE', over, '0', '0', 'WITHSCORES')
    m.over_us = first[2] and first[2] + 0 or huge
    flag(ctx, call('EXISTS', ctx.k.slow) == 1, call('EXISTS', ctx.k.windows) == 1, call('EXISTS', ctx.k.paid) == 1)
    return #ids == FORGET_MOST
  end

  -- page: a page of the slow-downs in force: { id, d, p } each, and where the next page begins.
  function brake.page(ctx, cursor)
    local page, list, ids = call('HSCAN', ctx.k.slow, cursor, 'COUNT', ctx.limits.batch), {}, {}
    for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
    for i, br in ipairs(ids[1] and brake.read(ctx, ids) or {}) do
      local p = record.policy_of(ctx.rec, ids[i])
      if p and br and br.slow and slow.matters(br.slow, p, ctx.now) then list[#list + 1] = { id = ids[i], d = br.slow, p = p } end
    end
    return list, page[1]
  end
end
