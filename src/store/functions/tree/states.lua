-- needs: base, limits.constraints, limits.slots, pace.share, route, route.room, state, state.bucket, state.line,
--   state.transitions, state.waiting, tree.budget, tree.path
-- The states of budgets, the other half of `budget` (tree/budget): a state is decided here, and written at the end of
-- the call.

do
  local line_of, change, ancestors_of, eligible_at = waiting.line, budget.change, budget.ancestors, budget.eligible_at

  local AHEAD_US = budget.AHEAD_US

  -- ---- places in lines ----

  -- leave_line: a budget leaves the line of a route.
  local function leave_line(ctx, b, name)
    waiting.unplace(ctx, waiting.route_key(ctx, name), b.id, b.routes[name])
    b.routes[name] = false
    change(ctx, b)
  end
  budget.leave_line = leave_line

  -- takes_none: whether a route takes no more jobs, as far as this call knows.
  local function takes_none(ctx, name)
    local r = ctx.rooms[name]
    return route.is_held(ctx, name) or r and r.call == ctx.calls and r.left <= 0
  end

  -- stand: a budget joins and leaves the lines of its routes, as its state says. One that is scheduled stands there
  -- where others do, from `ready_window` before its due on.
  function budget.stand(ctx, b)
    local is_top, is_held, is_due = b.p and not b.p.parent, waiting.is_held(ctx, b.state), b.state == ctx.k.schedule
    for name, place in pairs(b.routes) do
      local may = is_held or is_top and is_due and b.at <= ctx.now + (room.window_of(ctx, name) or 0)
      if place and not may then
        leave_line(ctx, b, name)
      elseif may and not place and (is_held or takes_none(ctx, name)) then
        line.join(ctx, name, b.id, b.at, budget.turns(ctx, b, name))
        b.routes[name] = b.at
        change(ctx, b)
      end
    end
  end

  -- served: a job of a budget has left for a route. Where the budget stood in the line of the route, that was its turn.
  function budget.served(ctx, b, name)
    local place = b.routes[name]
    if not place then return end
    line.served(ctx, name, b.id, waiting.rank_of(ctx, waiting.route_key(ctx, name), b.id, place) or 0)
    leave_line(ctx, b, name)
  end

  -- drop_route: nothing waits in the line of a budget for a route any more.
  local function drop_route(ctx, b, name)
    if b.routes[name] then leave_line(ctx, b, name) end
    local parent = waiting.budget(ctx, b.state)
    if parent then waiting.unplace(ctx, line_of(ctx, parent, name), b.id, b.at) end
    b.routes[name] = nil
    change(ctx, b)
  end

  -- move: an event takes a budget into a state, or leaves it there with another score. Its score is the due; while it
  -- cools, the time at which it is forgotten.
  local function move(ctx, b, event, to, at, rank)
    local from, stays = b.state, to == b.state and at == b.at and not rank
    if to ~= from then transitions.check(b.id, state.of(ctx, from), event, state.of(ctx, to)) end
    if not stays then
      local before, parent = waiting.budget(ctx, from), waiting.budget(ctx, to)
      for name in pairs(b.routes) do
        if before then
          rank = rank or to == from and waiting.rank_of(ctx, line_of(ctx, before, name), b.id, b.at)
          waiting.unplace(ctx, line_of(ctx, before, name), b.id, b.at)
        end
      end
      for name in pairs(parent and b.routes or {}) do
        waiting.place(ctx, line_of(ctx, parent, name), b.id, at, rank)
      end
      if waiting.is_set(ctx, to) then
        waiting.note(ctx, b.id, to, at)
      elseif waiting.is_set(ctx, from) then
        waiting.note(ctx, b.id)
      end
    end
    b.state, b.at, b.is_open = to, at, nil
    budget.stand(ctx, b)
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
    budget.comes_back(up, b.id)
    move(ctx, b, event, line_of(ctx, parent, ''), due, rank)
    b.goes_first = nil
    for name in pairs(b.routes) do budget.begin_work(ctx, up, name) end
  end

  -- shift_rank: the turn of a queued budget is moved by `step`.
  function budget.shift_rank(ctx, b, step)
    local parent, name = waiting.budget(ctx, b.state), next(b.routes)
    if not parent or not name then return end
    local rank = waiting.rank_of(ctx, line_of(ctx, parent, name), b.id, b.at)
    move(ctx, b, 'change', b.state, b.at, waiting.shifted(rank, step))
  end

  -- opens: a budget with work has a line for one more route: it stands in the lines that this makes.
  local function opens(ctx, b, name)
    local parent, other = waiting.budget(ctx, b.state), nil
    if parent then
      for one in pairs(b.routes) do other = one ~= name and one or other end
      local rank = other and waiting.rank_of(ctx, line_of(ctx, parent, other), b.id, b.at)
      local up = budget.get(ctx, parent)
      waiting.place(ctx, line_of(ctx, parent, name), b.id, b.at, rank or budget.finish_of(up, b.id, b.p))
      budget.begin_work(ctx, up, name)
    elseif waiting.is_held(ctx, b.state) then
      budget.decide(ctx, b, 'arrive') -- this route may take more
    else
      budget.stand(ctx, b)
    end
  end

  -- begin_work: a child waits for a share of a budget, for a route: a budget without work has work now.
  function budget.begin_work(ctx, b, name)
    local is_new, was_changed = b.routes[name] == nil, b.changed
    if is_new then
      if b.routes == budget.NO_ROUTES then b.routes = {} end
      b.routes[name] = false
      change(ctx, b)
    end
    if b.state and b.state ~= ctx.k.rest then
      if is_new then opens(ctx, b, name) end
      return
    end
    if not was_changed and (not b.state or share.rest_ends(b) <= ctx.now) then b.due = 0 end -- it has cooled down
    if b.p and b.p.parent then budget.drop_stale_tag(ctx, b.p.parent, b.id) end
    if b.constraint then constraints.begin_wait(ctx, b.constraint) end
    budget.decide(ctx, b, 'arrive')
    if ctx.begun and b.state == ctx.k.schedule and b.at <= ctx.now then ctx.begun[#ctx.begun + 1] = b.id end
  end

  -- queue_bucket: a bucket is queued: it is due, and a budget above does not admit it or its route takes no more.
  -- Replies its state.
  function budget.queue_bucket(ctx, s)
    local up = budget.get(ctx, s.p.parent)
    s.rank = s.rank or budget.finish_of(up, s.bucket, s.p)
    budget.comes_back(up, s.bucket)
    budget.begin_work(ctx, up, s.p.route)
    return line_of(ctx, s.p.parent, s.p.route)
  end

  -- enter_without_work: a budget has no work. Its due is kept until it makes no difference. Its time in a pause is not
  -- lateness of its next job.
  local function enter_without_work(ctx, b, event)
    local now, p, rested, to, at = ctx.now, b.p, ctx.k.rest, nil, 0
    if b.constraint then constraints.rests(ctx, b.constraint, b.due) end
    for name in pairs(b.routes) do drop_route(ctx, b, name) end
    b.routes = budget.NO_ROUTES
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
    if not budget.first(ctx, b) then return enter_without_work(ctx, b, 'turn') end
    if not budget.is_eligible(ctx, b) then return budget.decide(ctx, b, 'turn') end
    local parent = b.p.parent
    -- A change gave it another parent, and is not applied yet.
    if not parent or b.state ~= line_of(ctx, parent, '') then return budget.decide(ctx, b, 'turn') end
    if has_left or b.goes_first then
      budget.wait(ctx, parent, b, eligible_at(ctx, ancestors_of(ctx, b.id), 1), 'turn')
    end
  end

  -- enter_after_turn: the state of a budget after its turn at a route, or on the schedule: it waits for the first route
  -- that takes more.
  function budget.enter_after_turn(ctx, b)
    for name in pairs(b.routes) do
      if waiting.is_empty(ctx, line_of(ctx, b.id, name)) then drop_route(ctx, b, name) end
    end
    if not next(b.routes) then return enter_without_work(ctx, b, 'turn') end
    if not budget.is_eligible(ctx, b) then return budget.decide(ctx, b, 'turn') end
    for name in pairs(b.routes) do
      if not route.is_held(ctx, name) and room.of(ctx, name).left > 0 then return budget.decide(ctx, b, 'turn') end
    end
    local due = eligible_at(ctx, ancestors_of(ctx, b.id), 1)
    if b.p.parent then return budget.wait(ctx, b.p.parent, b, due, 'turn') end
    move(ctx, b, 'turn', waiting.route_key(ctx, ''), due)
  end

  -- enter: decide the state of a budget after a change: with work or without.
  function budget.enter(ctx, b, event)
    if budget.first(ctx, b) then
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

  -- is_placed: whether a budget stands in each line in which it should by what is known of it.
  local function is_placed(ctx, b)
    local parent, all = waiting.budget(ctx, b.state), true
    for name, place in pairs(b.routes) do
      if parent and not waiting.rank_of(ctx, line_of(ctx, parent, name), b.id, b.at) then all = false end
      if place and not waiting.rank_of(ctx, waiting.route_key(ctx, name), b.id, place) then
        b.routes[name], all = false, false
      end
    end
    return all
  end

  -- repair: decide the state of a budget again that has one and is not in the set of that state: somebody deleted the
  -- set, or another server wrote it. `name`: something waits in its line for this route. Replies whether it was so.
  -- reads   that set      writes  where it is not there: it leaves all others      cost  1 call
  function budget.repair(ctx, id, name)
    local b = budget.get(ctx, id)
    local k, set, is_known = ctx.k, b.state, name == nil or b.routes[name] ~= nil
    local has_work = set and set ~= k.rest
    if is_known and not has_work then return false end
    -- An error: the key holds something else.
    if is_known and is_placed(ctx, b) and (waiting.is_set(ctx, set) or pcall_redis('ZSCORE', set, id)) then
      return false
    end
    if not has_work then -- its line in `budgets` is lost
      local text = waiting.states(ctx, { id })[1]
      local parent = text and waiting.budget(ctx, (waiting.decode(ctx, text)))
      if parent then waiting.unplace(ctx, line_of(ctx, parent, name), id, sub(text, 1, 16) + 0) end
      if text then waiting.note(ctx, id) end
    end
    for _, other in ipairs({ k.schedule, k.rest, k.paused, k.full, k.refused }) do pcall_redis('ZREM', other, id) end
    b.stored_state = nil -- whatever follows is written
    if not is_known then budget.begin_work(ctx, b, name) end
    b.at = waiting.is_set(ctx, b.state) and b.at or 0
    budget.enter(ctx, b, 'change')
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
    local waits = b.state == (parent and line_of(ctx, parent, '') or waiting.route_key(ctx, ''))
    local stays = waits and budget.is_eligible(ctx, b)
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

  -- settle: what left a line of a budget in this call may have been the last that waited there.
  local function settle(ctx)
    while ctx.left_lines do
      local keys_left = ctx.left_lines
      ctx.left_lines = false
      for key in pairs(keys_left) do
        local id, name = waiting.parts(ctx, key)
        local b = budget.get(ctx, id)
        if b.routes[name] ~= nil and waiting.is_empty(ctx, key) then
          drop_route(ctx, b, name)
          if not next(b.routes) then enter_without_work(ctx, b, 'change') end
        end
      end
    end
  end

  -- flush: write the budgets that changed, before the states are written (state.flush).
  -- writes  budgets      cost  at most 2 calls
  function budget.flush(ctx)
    settle(ctx)
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
    settle(ctx)
    local changed = cool_passed(ctx, all.changed)
    for i = 1, #changed do
      local b = changed[i]
      if not b.state or b.state == rested then enter_without_work(ctx, b, 'turn') end
      local to = b.state
      if to and to ~= rested then
        add[#add + 1], add[#add + 2], b.is_stored = b.id, budget.encode(ctx, b), true
        if waiting.is_set(ctx, to) then to = nil end
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
  waiting.settle = budget.flush
end
