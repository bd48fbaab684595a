-- needs: base, limits.constraints, limits.slots, pace.share, state, state.bucket, state.transitions, state.waiting,
--   tree.budget, tree.path
-- The states of budgets, the other half of `budget` (tree/budget): a state is decided here, and written at the end of
-- the call.

do
  local key_of, change, ancestors_of, eligible_at = waiting.key, budget.change, budget.ancestors, budget.eligible_at

  local AHEAD_US = budget.AHEAD_US

  -- move: an event takes a budget into a state, or leaves it there with another score. Its score is the due; while it
  -- cools, the time at which it is forgotten.
  local function move(ctx, b, event, to, at, rank)
    local from, stays = b.state, to == b.state and at == b.at and not rank
    if to ~= from then transitions.check(b.id, state.of(ctx, from), event, state.of(ctx, to)) end
    if not stays and waiting.budget(ctx, from) then
      rank = rank or to == from and waiting.rank_of(ctx, from, b.id, b.at)
      waiting.leave(ctx, from, b.id, b.at)
    end
    if not stays and waiting.budget(ctx, to) then waiting.join(ctx, to, b.id, at, rank) end
    b.state, b.at, b.is_open = to, at, nil
    change(ctx, b)
  end

  -- decide: decide the state of a budget with work again.
  function budget.decide(ctx, b, event)
    -- Itself first; the budgets above are reconciled too, whatever stops this one.
    local list = b.p and not b.p.refused and ancestors_of(ctx, b.id)
    local stopped = state.stopped(ctx, b.id, b.p)
    if stopped then return move(ctx, b, event, stopped, stopped == ctx.k.refused and ctx.now or max(b.due, 0)) end
    local due = eligible_at(ctx, list, 1)
    if due <= ctx.now and b.p.parent and path.is_blocked(ctx, b.p.parent) then
      return budget.wait(ctx, b.p.parent, b, due, event)
    end
    move(ctx, b, event, ctx.k.schedule, due)
  end

  -- wait: a budget is queued at the budget above it.
  function budget.wait(ctx, parent, b, due, event)
    local up = budget.get(ctx, parent)
    local rank = b.goes_first and waiting.FRONT or budget.finish_of(up, b.id, b.p)
    move(ctx, b, event, key_of(ctx, parent), due, rank)
    b.goes_first = nil
    budget.begin_work(ctx, up)
  end

  -- shift_rank: the turn of a queued budget is moved by `step`.
  function budget.shift_rank(ctx, b, step)
    if not waiting.budget(ctx, b.state) then return end
    move(ctx, b, 'change', b.state, b.at, waiting.shifted(waiting.rank_of(ctx, b.state, b.id, b.at), step))
  end

  -- begin_work: a child waits for a share of a budget: a budget without work has work now.
  function budget.begin_work(ctx, b)
    if b.state and b.state ~= ctx.k.rest then return end
    if not b.changed and (not b.state or share.rest_ends(b) <= ctx.now) then b.due = 0 end -- it has cooled down
    if b.p and b.p.parent then budget.drop_stale_tag(ctx, b.p.parent, b.id) end
    if b.constraint then constraints.begin_wait(ctx, b.constraint) end
    budget.decide(ctx, b, 'arrive')
  end

  -- queue_bucket: a bucket that is due, and that a budget above does not admit, is queued. Replies its state.
  function budget.queue_bucket(ctx, s)
    local up = budget.get(ctx, s.p.parent)
    s.rank = s.rank or budget.finish_of(up, s.bucket, s.p)
    budget.begin_work(ctx, up)
    return key_of(ctx, s.p.parent)
  end

  -- enter_without_work: a budget has no work. Its due is kept until it makes no difference. Its time in a pause is not
  -- lateness of its next job.
  local function enter_without_work(ctx, b, event)
    local now, p, rested, to, at = ctx.now, b.p, ctx.k.rest, nil, 0
    if b.resumed_at ~= 0 and b.resumed_at <= now then b.due, b.resumed_at = max(b.due, b.resumed_at), 0 end
    if p and p.count and b.due + p.catch_up_us > now then to, at = rested, b.due + p.catch_up_us end
    if b.state and b.state ~= rested then return move(ctx, b, event, to, at) end
    b.state, b.at = to, at
    if not b.changed then change(ctx, b) end
  end

  -- is_eligible: whether nothing of a budget's own keeps it from letting out a job now.
  function budget.is_eligible(ctx, b)
    if b.is_open then return b.due <= ctx.now end
    if not b.p or b.p.refused or b.p.paused or slots.is_full(ctx, b.id, b.p) then return false end
    return eligible_at(ctx, ancestors_of(ctx, b.id), 1) <= ctx.now
  end

  -- enter_after_grant: the state of a budget after a granted turn. It is queued for its next turn, if nothing of its
  -- own stops it. A budget through which no job has left keeps its turn.
  function budget.enter_after_grant(ctx, b, has_left)
    if not waiting.first(ctx, key_of(ctx, b.id)) then return enter_without_work(ctx, b, 'turn') end
    if not budget.is_eligible(ctx, b) then return budget.decide(ctx, b, 'turn') end
    local parent = b.p.parent
    -- A change gave it another parent, and is not applied yet.
    if not parent or b.state ~= key_of(ctx, parent) then return budget.decide(ctx, b, 'turn') end
    if has_left or b.goes_first then
      budget.wait(ctx, parent, b, eligible_at(ctx, ancestors_of(ctx, b.id), 1), 'turn')
    end
  end

  -- enter: decide the state of a budget after its turn, or after a change: with work or without.
  function budget.enter(ctx, b, event)
    if waiting.first(ctx, key_of(ctx, b.id)) then
      budget.decide(ctx, b, event)
    else
      enter_without_work(ctx, b, event)
    end
  end

  -- slot_freed: a budget may have a free slot. Replies whether it was blocked and resumes.
  function budget.slot_freed(ctx, id)
    local b = budget.get(ctx, id)
    if b.state ~= ctx.k.full or b.p and slots.is_full(ctx, id, b.p) then return false end
    b.resumed_at, b.is_open = max(b.resumed_at, ctx.now), nil
    budget.enter(ctx, b, 'free')
    return true
  end

  -- repair: decide the state of a budget again that has one and is not in the set of that state: somebody deleted the
  -- set, or another server wrote it. `has_work`: something waits for it, so it has a state with work. Replies whether
  -- it was so.
  -- reads   that set      writes  where it is not there: it leaves all others      cost  1 call
  function budget.repair(ctx, id, has_work)
    local b = budget.get(ctx, id)
    local k, set = ctx.k, b.state
    -- An error: the key holds something else.
    if not set or set == k.rest then
      if not has_work then return false end
      local text = waiting.states(ctx, { id })[1]
      if text then -- only its line is lost
        b.state, b.at = waiting.decode(ctx, text)
        b.is_open = nil
        change(ctx, b)
        return budget.repair(ctx, id)
      end
    elseif waiting.budget(ctx, set) then
      if waiting.rank_of(ctx, set, id, b.at) then return false end
    elseif pcall_redis('ZSCORE', set, id) then
      return false
    end
    for _, other in ipairs({ k.schedule, k.rest, k.paused, k.full, k.refused }) do pcall_redis('ZREM', other, id) end
    b.stored_state = nil -- whatever follows is written
    if not set or set == k.rest then
      budget.begin_work(ctx, b)
    else
      b.at = 0
      budget.enter(ctx, b, 'change')
    end
    return true
  end

  -- reconcile: decide the state of a budget again after a change. Its due was reconciled when it was read.
  function budget.reconcile(ctx, id)
    local b = budget.get(ctx, id)
    if not b.state or b.state == ctx.k.rest then return change(ctx, b) end
    local was_stopped = b.state == ctx.k.paused or b.state == ctx.k.full or b.state == ctx.k.refused
    if was_stopped and b.p and not b.p.paused and not b.p.refused and not slots.is_full(ctx, id, b.p) then
      b.resumed_at, b.is_open = max(b.resumed_at, ctx.now), nil
    end
    local parent = b.p and not b.p.refused and b.p.parent
    local stays = parent and b.state == key_of(ctx, parent) and budget.is_eligible(ctx, b)
    if not stays then budget.enter(ctx, b, 'change') end
  end

  -- cool_passed: the budgets that cool again after jobs have passed through, with nothing else changed: most. Replies
  -- the others.
  -- The stored time of such a budget is a second after the real end of its cooling, so the calls of that second have
  -- nothing to write. This server remembers the real end (pace/share). A server that takes over, or was restarted,
  -- believes the stored time. So no job leaves too early, and the first job leaves an interval late at most: a due
  -- further ahead is not believed (reconcile, tree/budget).
  -- A server that lets a job pass must change what another server has stored. Otherwise that other server would believe
  -- its old memory when it comes back. The stored time does change: either the new end is later than the stored time,
  -- or the job had to wait, and then the real end is written. A real end is a whole number, and a time that is stored
  -- ahead ends with half a microsecond, so the two never look the same.
  local function cool_passed(ctx, changed)
    local now, rested, list, earliest, others = ctx.now, ctx.k.rest, state.cooling(ctx), huge, {}
    local n, before, text = #list, nil, nil
    for i = 1, #changed do
      local b = changed[i]
      if b.is_open and not b.is_stored and not b.unapplied and b.stored_state == b.state then
        local at, stored = b.due + b.is_open.makes_up, b.stored_at
        b.at, b.changed = at, false
        if at > now and (not b.state or at > stored or at + AHEAD_US < stored) then
          -- A slower one has something to write with each job anyway.
          local till = b.p.interval_us < AHEAD_US and at + AHEAD_US or at
          if till ~= before then -- many have the same end
            before, text = till, format('%.1f', till)
            if till < earliest then earliest = till end
          end
          list[n + 1], list[n + 2] = text, b.id
          n = n + 2
          b.state, b.stored_state, b.stored_at, b.covered = rested, rested, till, till
        end
      else
        others[#others + 1] = b
      end
    end
    if earliest < ctx.memory.rest_us then ctx.memory.rest_us = earliest end
    return others
  end

  -- flush: write the budgets that changed, before the states are written (state.flush).
  -- writes  budgets      cost  at most 2 calls
  function budget.flush(ctx)
    local all, add, gone, rested = ctx.memory.budgets, {}, {}, ctx.k.rest
    -- A timed setting of these budgets has ended, and this call is the first to see it. What stored the setting is gone
    -- when the call is over, so no later call would reconcile their states. Each may change the budget above it, so the
    -- list may grow.
    for _, b in ipairs(all.changed) do
      if b.unapplied and b.p.over then
        budget.reconcile(ctx, b.id)
        ctx.memory.refused_again = true
      end
    end
    local changed = cool_passed(ctx, all.changed)
    for i = 1, #changed do
      local b = changed[i]
      if not b.state or b.state == rested then enter_without_work(ctx, b, 'turn') end
      local to = b.state
      if to and to ~= rested then
        add[#add + 1], add[#add + 2], b.is_stored = b.id, budget.encode(ctx, b), true
        if waiting.budget(ctx, to) then to = nil end
      elseif b.is_stored then
        gone[#gone + 1], b.is_stored = b.id, false
      end
      if to ~= b.stored_state or b.at ~= b.stored_at then state.move(ctx, b.id, b.stored_state, to, b.at) end
      b.stored_state, b.stored_at = to, b.at
      if b.is_open then budget.cover(ctx, b) end
      if b.unapplied then
        bucket.mark_applied(ctx, { bucket = b.id, in_rollout = b.in_rollout, p = b.p })
        b.unapplied = false
      end
      b.changed = false
    end
    base.write(call, 'HSET', ctx.k.budgets, add)
    base.write(call, 'HDEL', ctx.k.budgets, gone)
    all.changed, ctx.write_budgets = {}, false -- last: where something above raises, no remembered budget is believed
    all.is_written = false -- until their states are written
  end
end
