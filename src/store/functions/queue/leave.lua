-- needs: base, base.call, jobs.slots, pace.brake, pace.quota, pace.rate, queue.envelope, queue.ids, queue.rejected,
--   route.forward, route.room, tree.budget, tree.path, tree.waiting, view.trace
-- Leave: what a job needs to leave its bucket, what it pays for that, and what becomes of a submitted one. Dispatch (queue/dispatch) is made of it.

local leave = {}
do
  local digits, after, room_of, above, admits, charge = base.digits, rate.after, room.of, budget.above, path.admits, path.charge
  local note = context.note

  -- Lateness is counted in quarters of an octave: late:<k> holds those of 2^(k/4) to 2^((k+1)/4) us, less one. Jobs that leave
  -- together are about as late as each other, so the borders of the last quarter are remembered.
  local quarters, log
  at_first_call[#at_first_call + 1] = function() log, quarters = math.log, 4 / math.log(2) end

  function leave.find_quarter(m, late)
    local k = floor(log(max(0, late) + 1) * quarters + 1e-9) -- a whole quarter must not come out just below itself
    m.late_k, m.late_from, m.late_to = k, ceil(2 ^ (k / 4) - 1), 2 ^ ((k + 1) / 4) - 1
  end

  -- others_wait: whether other retries or delayed jobs of a bucket could leave than the `own` one that leaves now. It is asked only where
  -- a slow-down left a part of the rate, which comes back while jobs wait; else the reply is no.
  -- reads   its retries and delayed jobs      cost  2 calls, where it is asked
  function leave.others_wait(ctx, s, own)
    local br = s.brake
    if not br or not br.slow or br.slow.factor >= 1 then return false end
    local n = 0
    for _, key in ipairs({ ctx.k.retry, ctx.k.delayed }) do
      local found = pcall_redis('ZCOUNT', key .. s.bucket, '-inf', ctx.now_text)
      n = n + (tonumber(found) or 0) -- a key may hold something else
    end
    return n > own
  end

  -- left: a job of so many bytes has left in return for the due that it met. The next due follows the one met: lateness up to
  -- catch_up is made up, more is not. `more` says whether more jobs wait; `cost` is nil for a job of cost 1.
  function leave.left(ctx, s, r, bytes, more, cost)
    local due, p, now, m, br = s.due, s.p, ctx.now, ctx.memory, s.brake
    r.left, r.sent = r.left - 1, r.sent + 1
    ctx.dispatched, ctx.bytes = ctx.dispatched + 1, ctx.bytes + bytes
    if p.parent then
      charge(ctx, above(ctx, p.parent), s.bucket, p, s.turn_ends, cost)
      s.turn_ends = nil
    end
    local late = now - (s.met or due)
    if late > ctx.latest_us then ctx.latest_us = late end
    if late < m.late_from or late >= m.late_to then leave.find_quarter(m, late) end
    local lates, k = m.lates, m.late_k
    lates[k] = (lates[k] or 0) + 1
    local from = now - (p.parent and brake.catch_up_us(p, br, above(ctx, p.parent)[1], now) or p.catch_up_us)
    if due < from then due = from end
    if cost and not br then
      br = brake.give(ctx, s.bucket, p)
      s.brake = br
    end
    if br then
      s.due = brake.left(ctx, br, p, due, more, cost or 1, from)
    elseif p.part == 0 then
      s.due = due + p.step
    else
      s.due = after(p, due)
    end
    s.due_text, s.met = nil, nil
  end

  -- refused: a stream did not take a job; it takes no more in this call.
  function leave.refused(ctx, r, err)
    room.close(ctx, r)
    note(ctx, 'refused', r.stream, err)
  end

  -- may_go: the route's room, where one more job may leave now; else nil.
  function leave.may_go(ctx, s, quota)
    if quota <= 0 or s.due > ctx.now or ctx.bytes >= MIB then return nil end
    local parent = s.p.parent
    if s.p.limited then
      if slots.is_full(ctx, s.bucket, s.p) then return nil end
      if not slots.can_take(ctx) then
        s.parked = true
        return nil
      end
    end
    if parent then
      if s.p.refused then return nil end
      local eligible_at, due = admits(ctx, above(ctx, parent), s.due)
      if not eligible_at then return nil end
      s.met, s.due, s.due_text = eligible_at, due, nil
    end
    local r = ctx.rooms[s.p.route]
    if not r or r.left <= 0 then
      r = room_of(ctx, s.p.route)
      if r.left <= 0 then return nil end
    end
    return r
  end

  -- has_room: whether the quotas of a bucket and of the budgets above it have room for a job of this cost. Where one has too little left its
  -- node waits for the end of that window, so that nothing overtakes the job.
  function leave.has_room(ctx, s, cost)
    local p, br, now = s.p, s.brake, ctx.now
    local till = p.quotas and br and br.windows and quota.till(br.windows, p.quotas, now, cost) or 0
    if till > now then
      brake.needs(ctx, br, cost, till)
      s.due, s.due_text = brake.hold(ctx, br, p, s.due), nil
      return false
    end
    local line = p.parent and above(ctx, p.parent) or {}
    for i, b in ipairs(line) do
      till = b.p.quotas and b.brake and b.brake.windows and quota.till(b.brake.windows, b.p.quotas, now, cost) or 0
      if till > now then
        brake.needs(ctx, b.brake, cost, till)
        brake.hold_budget(ctx, b, b.p)
        s.ends = waiting.FRONT
        for k = 1, i - 1 do line[k].goes_first = true end
        budget.brake_changed(ctx, b)
        b.is_open = nil
        return false
      end
    end
    return true
  end

  -- turned_away: a submitted job whose turn has come is gone without a slot. Replies whether it is: what cannot be recorded stays.
  --   cancelled   somebody took it back                 expired   its deadline is over: to the rejected
  --   too large   likewise
  local function turned_away(ctx, s, o, bytes, it)
    local name = s.bucket
    if ids.is_cancelled(it) then
      ctx.bytes = ctx.bytes + bytes
      context.count(ctx, 'cancelled', 1)
    else
      local reason = #o.body > ctx.limits.max_job_bytes and 'too_large' or 'expired'
      if not rejected.turn_away(ctx, s, o.body, reason) then return false end
    end
    ids.left(ctx, name, o, it)
    if it then ids.dropped(ctx, name, { o.id }) end
    return true
  end

  -- submitted: the turn of a submitted job, of `bytes` as it is stored. It leaves, or it is gone without a slot. `more` says whether more
  -- jobs wait. Replies whether it is gone from where it waited.
  -- reads, writes  the ready stream, the ids, what `left` writes      cost  3 calls
  function leave.submitted(ctx, s, r, o, bytes, more)
    local name, p = s.bucket, s.p
    if o.is_newer then
      note(ctx, 'newer', s.queue)
      s.parked = true
      return false
    end
    local it = ids.of_job(ctx, name, o)
    if ids.is_cancelled(it) or #o.body > ctx.limits.max_job_bytes or o.deadline_us and o.deadline_us < ctx.now then
      s.parked = not turned_away(ctx, s, o, bytes, it)
      return not s.parked
    end
    local cost = o.cost > 1 and o.cost or nil
    if cost and not leave.has_room(ctx, s, cost) then return false end
    local due_text = s.due_text or digits(s.met or s.due)
    local entry = {
      'bucket', name, 'job', o.body, 'attempt', '1', 'due_us', due_text, 'at_us', ctx.now_text, 'lease_ms', p.lease, 'id', o.id,
    }
    envelope.add_fields(entry, o)
    local added = r.forward and forward.send(r, o.body) or pcall_redis('XADD', r.stream, '*', unpack(entry))
    if added.err then -- a text has no such field
      leave.refused(ctx, r, added.err)
      return false
    end
    if p.limited then slots.take(ctx, p.route, added, path.limited(ctx, name, p)) end
    local drips = trace.dispatches_of(ctx.memory)
    if drips then trace.dispatched(drips, name, due_text, ctx.now_text) end
    ids.left(ctx, name, o, it)
    leave.left(ctx, s, r, bytes, more, cost)
    return true
  end
end
