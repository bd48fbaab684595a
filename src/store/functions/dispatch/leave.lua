-- needs: base, context, context.trace, limits.constraints, limits.slots, pace.rate, policy.forward,
--   queue.envelope, queue.ids, queue.rejected, route, route.room, state.waiting, tree.budget, tree.path
-- Leave: whether a job may leave its bucket, how it leaves, what is charged for it, and how a submitted job is dropped
-- at its turn. Dispatch (dispatch) is built from these steps.

local leave = {}
do
  local digits, after, room_of, ancestors_of, admits, charge =
    base.digits, rate.after, room.of, budget.ancestors, path.admits, path.charge
  local note = context.note

  local quarters, log
  at_first_call[#at_first_call + 1] = function() log, quarters = math.log, 4 / math.log(2) end

  -- quarter_of: a job has left `late` us after its eligible time: the number under which that is counted, k, and its
  -- bounds. Lateness is counted in quarters of an octave: late:<k> has those from 2^(k/4) - 1 to below 2^((k+1)/4) - 1.
  -- count_late: so many jobs have left with a lateness of this quarter.
  function leave.quarter_of(late)
    -- Without the 1e-9 a whole quarter may come out just below itself.
    local k = floor(log(max(late, 0) + 1) * quarters + 1e-9)
    return k, 2 ^ (k / 4) - 1, 2 ^ ((k + 1) / 4) - 1
  end

  function leave.count_late(m, quarter, jobs)
    m.lates[quarter] = (m.lates[quarter] or 0) + jobs
  end

  -- others_wait: whether retries or delayed jobs of a bucket could leave besides the `own` ones that leave now. Only
  -- asked where a slow-down has reduced the rate, which comes back while jobs wait; else the reply is false.
  -- reads   its retries and delayed jobs      cost  2 calls, where it is asked
  function leave.others_wait(ctx, s, own)
    local constraint = s.constraint
    if not constraint or not constraint.slowdown or constraint.slowdown.factor >= 1 then return false end
    local n = 0
    for _, key in ipairs({ ctx.k.retry, ctx.k.delayed }) do
      local found = pcall_redis('ZCOUNT', key .. s.bucket, '-inf', ctx.now_text)
      n = n + (tonumber(found) or 0) -- a key may hold something else
    end
    return n > own
  end

  -- charge_bucket: a job of so many bytes has left a bucket: charge its budgets and the bucket. The next due follows
  -- the present one: lateness up to catch_up is made up, more is not. `more`: more jobs wait. `cost` is nil for a job
  -- of cost 1 that is charged 1; `charged` and `credit` are as in constraints.price.
  local function charge_bucket(ctx, s, r, bytes, more, cost, charged, credit)
    local due, p, now, constraint = s.due, s.p, ctx.now, s.constraint
    if p.parent then
      charge(ctx, ancestors_of(ctx, p.parent), s.bucket, p, s.finish, cost, charged)
      s.finish = nil
    end
    local late = now - (s.met or due)
    r.left, r.sent = r.left - 1, r.sent + 1
    ctx.dispatched, ctx.bytes, ctx.latest_us = ctx.dispatched + 1, ctx.bytes + bytes, max(ctx.latest_us, late)
    leave.count_late(ctx.memory, leave.quarter_of(late), 1)
    local from = now
      - (p.parent and constraints.catch_up_us(p, constraint, ancestors_of(ctx, p.parent)[1], now) or p.catch_up_us)
    if due < from then due = from end
    if cost and not constraint then
      constraint = constraints.ensure(ctx, s.bucket, p)
      s.constraint = constraint
    end
    if constraint then
      s.due = constraints.dispatched(ctx, constraint, p, due, more, cost or 1, from, charged or 1, credit)
    elseif p.part == 0 then
      s.due = due + p.step
    else
      s.due = after(p, due)
    end
    s.met = nil
  end

  -- not_taken: a stream did not take a job. It takes no more in this call.
  function leave.not_taken(ctx, r, err)
    room.close(ctx, r)
    note(ctx, 'refused', r.stream, err)
  end

  -- send: a job leaves its bucket: add it to its route, take its slots, and charge it. `bytes`, `more` and `cost` are
  -- those of `charge_bucket`. `extra` is a list of further fields of its entry, or nil. Replies whether the route took
  -- it (`s.is_sent`); if not, nothing has changed.
  -- writes  the ready stream or the list, the slots      cost  1 to 3 calls, 2 more for each slot
  function leave.send(ctx, s, r, job, attempt, bytes, more, cost, extra)
    local name, p, due_text, added = s.bucket, s.p, digits(s.met or s.due), nil
    local charged, credit = cost, nil
    if s.constraint and s.constraint.paid then
      charged, credit = constraints.price(s.constraint, p, cost or 1, s.due)
      if charged ~= (cost or 1) then
        cost, extra = cost or 1, extra or {}
        base.append(extra, 'charged', digits(charged))
      end
    end
    if r.forward then
      added = forward.send(r, job)
    elseif extra then
      added = route.add(r.stream, name, job, attempt, due_text, ctx.now_text, p.lease, unpack(extra))
    else
      added = route.add(r.stream, name, job, attempt, due_text, ctx.now_text, p.lease)
    end
    if added.err then -- a text has no such field
      leave.not_taken(ctx, r, added.err)
      return false
    end
    s.is_sent = true
    if p.limited or ctx.has_told and not r.forward then
      slots.take(ctx, p.route, added, path.limited(ctx, name, p))
    end
    local dispatches = trace.dispatches_of(ctx.memory)
    if dispatches then trace.dispatched(dispatches, name, due_text, ctx.now_text) end
    charge_bucket(ctx, s, r, bytes, more, cost, charged, credit)
    return true
  end

  -- admits: the room of the route, where one more job of a bucket that is not refused may leave now; else nil.
  function leave.admits(ctx, s, allowed)
    if allowed <= 0 or s.due > ctx.now or ctx.bytes >= MIB then return nil end
    local parent = s.p.parent
    if s.p.limited or ctx.has_told then
      if slots.is_full(ctx, s.bucket, s.p) then return nil end
      if not slots.can_take(ctx) then
        s.parked = true
        return nil
      end
    end
    if parent then
      local eligible_at, due = admits(ctx, ancestors_of(ctx, parent), s.due)
      if not eligible_at then return nil end
      s.met, s.due = eligible_at, due
    end
    if ctx.at_route then s.met = ctx.now end -- it waited for workers, which is not late
    local r = ctx.rooms[s.p.route]
    if not r or r.left <= 0 then
      r = room_of(ctx, s.p.route)
      if r.left <= 0 then return nil end
    end
    return r
  end

  -- has_room: whether the quotas and told limits of a bucket, and of the budgets on its path, have room for a job of
  -- this cost. A node with too little left waits for the end of that window, so that nothing overtakes the job.
  function leave.has_room(ctx, s, cost)
    local p, constraint, now = s.p, s.constraint, ctx.now
    local till = constraint and constraints.room_at(constraint, p, now, cost) or 0
    if till > now then
      constraints.needs(ctx, constraint, cost, till)
      s.due = constraints.hold(ctx, constraint, p, s.due)
      return false
    end
    local ancestors = p.parent and ancestors_of(ctx, p.parent) or {}
    for i, b in ipairs(ancestors) do
      till = b.constraint and constraints.room_at(b.constraint, b.p, now, cost) or 0
      if till > now then
        constraints.needs(ctx, b.constraint, cost, till)
        constraints.hold_budget(ctx, b, b.p)
        s.rank = waiting.FRONT
        for k = 1, i - 1 do ancestors[k].goes_first = true end
        budget.constraint_changed(ctx, b)
        b.is_open = nil
        return false
      end
    end
    return true
  end

  -- turned_away: drop a submitted job at its turn, without taking a slot. Replies whether it is gone: where that cannot
  -- be recorded it stays.
  --   cancelled   somebody cancelled it                 expired   its deadline has passed: it is rejected
  --   too large   it is rejected
  local function turned_away(ctx, s, o, bytes, known)
    local name = s.bucket
    if known.changed == '' then
      ctx.bytes, ctx.entries = ctx.bytes + bytes, ctx.entries + 1
      context.count(ctx, 'cancelled', 1)
    else
      local reason = #o.body > ctx.limits.max_job_bytes and 'too_large' or 'expired'
      if not rejected.turn_away(ctx, s, o.body, reason) then return false end
    end
    ids.dropped(ctx, name, o.id, known)
    return true
  end

  -- submitted: the turn of a submitted job, of `bytes` as it is stored, from the queue (`state` q) or delayed (d). It
  -- leaves, or it is dropped without taking a slot. `more`: more jobs wait. Replies whether it is gone from where it
  -- waited.
  -- reads, writes  the ready stream, the ids, what `left` writes      cost  3 calls
  function leave.submitted(ctx, s, r, o, state, bytes, more)
    local name = s.bucket
    if o.is_newer then
      note(ctx, 'newer', s.queue)
      s.parked = true
      return false
    end
    local known = ids.at_turn(ctx, name, o.id, state, o.accepted_us)
    o, bytes = envelope.changed_by(ctx.magic, o, known.changed), bytes + #(known.changed or '')
    local is_late = o.deadline_us and o.deadline_us < ctx.now
    if known.changed == '' or #o.body > ctx.limits.max_job_bytes or is_late then
      s.parked = not turned_away(ctx, s, o, bytes, known)
      return not s.parked
    end
    local cost = o.cost > 1 and o.cost or nil
    if cost and not leave.has_room(ctx, s, cost) then return false end
    local extra = { 'id', o.id }
    envelope.add_fields(extra, o)
    if not leave.send(ctx, s, r, o.body, '1', bytes, more, cost, extra) then return false end
    ids.left(ctx, name, s.p, o, known)
    return true
  end
end
