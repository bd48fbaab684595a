-- needs: base, jobs.slots, pace.brake, queue.bucket, queue.places, tree.budget, tree.share, tree.waiting
-- Stand: the other half of `budget` (tree/budget): where budgets stand, and what a call writes of them when it is over.

do
  local digits, key_of, change, above, met_by = base.digits, waiting.key, budget.change, budget.above, budget.met_by

  local AHEAD_US = budget.AHEAD_US

  -- move: a budget stands in another place from now on. Its score there is the due; at rest the time at which it is forgotten.
  local function move(ctx, b, place, at, ends)
    local from, stays = b.place, place == b.place and at == b.at and not ends
    if not stays and waiting.budget(ctx, from) then
      ends = ends or place == from and waiting.ends_of(ctx, from, b.id, b.at)
      waiting.leave(ctx, from, b.id, b.at)
    end
    if not stays and waiting.budget(ctx, place) then waiting.join(ctx, place, b.id, at, ends) end
    b.place, b.at, b.is_open = place, at, nil
    change(ctx, b)
  end

  -- stand: a budget with work stands where it must.
  function budget.stand(ctx, b)
    if not b.p or b.p.refused then return move(ctx, b, ctx.k.refused, ctx.now) end
    local list = above(ctx, b.id) -- itself first
    if b.p.paused then return move(ctx, b, ctx.k.paused, max(b.due, 0)) end
    if slots.is_full(ctx, b.id, b.p) then return move(ctx, b, ctx.k.full, max(b.due, 0)) end
    local due = met_by(ctx, list, 1)
    if due > ctx.now then return move(ctx, b, ctx.k.schedule, due) end
    if b.p.parent and budget.blocked(ctx, b.p.parent) then return budget.wait(ctx, b.p.parent, b, due) end
    move(ctx, b, ctx.k.schedule, due)
  end

  -- wait: a budget waits for its share of the one above.
  function budget.wait(ctx, parent, b, due)
    local up = budget.get(ctx, parent)
    move(ctx, b, key_of(ctx, parent), due, b.goes_first and waiting.FRONT or budget.end_of(ctx, up, b.id, b.p))
    b.goes_first = nil
    budget.has_work(ctx, up)
  end

  -- turn_moves: a budget that waits for its share has its turn so much later, or earlier.
  function budget.turn_moves(ctx, b, step)
    if not waiting.budget(ctx, b.place) then return end
    move(ctx, b, b.place, b.at, waiting.later(waiting.ends_of(ctx, b.place, b.id, b.at), step))
  end

  -- has_work: something waits for a share of a budget: it stands somewhere.
  function budget.has_work(ctx, b)
    if b.place and b.place ~= ctx.k.rest then return end
    if not b.changed and (not b.place or share.rest_ends(b) <= ctx.now) then b.due = 0 end -- it rested for long enough
    if b.p and b.p.parent then budget.arrives(ctx, b.p.parent, b.id) end
    if b.brake then brake.has_waiting(ctx, b.brake) end
    budget.stand(ctx, b)
  end

  -- come: a bucket that is due, and that something above keeps from going, waits for its share. Replies its place.
  function budget.come(ctx, s)
    local up = budget.get(ctx, s.p.parent)
    s.ends = s.ends or budget.end_of(ctx, up, s.bucket, s.p)
    budget.has_work(ctx, up)
    return key_of(ctx, s.p.parent)
  end

  -- rest: a budget without work: what is known of it stays until it makes no difference any more. What it waited by order is no lateness
  -- of its next job either.
  local function rest(ctx, b)
    local now, p, rested, place, at = ctx.now, b.p, ctx.k.rest, nil, 0
    if b.resumed_at ~= 0 and b.resumed_at <= now then b.due, b.resumed_at = max(b.due, b.resumed_at), 0 end
    if p and p.count and b.due + p.catch_up_us > now then place, at = rested, b.due + p.catch_up_us end
    if b.place and b.place ~= rested then return move(ctx, b, place, at) end
    b.place, b.at = place, at
    if not b.changed then change(ctx, b) end
  end

  -- may_go_by_itself: whether nothing of its own keeps a budget from going now.
  function budget.may_go_by_itself(ctx, b)
    if b.is_open then return b.due <= ctx.now end
    if not b.p or b.p.refused or b.p.paused or slots.is_full(ctx, b.id, b.p) then return false end
    return met_by(ctx, above(ctx, b.id), 1) <= ctx.now
  end

  -- take_place: where a budget waits after it was picked: for its next share, if nothing of its own keeps it; one through which no job
  -- has left keeps its turn.
  function budget.take_place(ctx, b, has_left)
    if not waiting.first(ctx, key_of(ctx, b.id)) then return rest(ctx, b) end
    if not budget.may_go_by_itself(ctx, b) then return budget.stand(ctx, b) end
    local parent = b.p.parent
    if not parent or b.place ~= key_of(ctx, parent) then return budget.stand(ctx, b) end -- a change moved it, and has not come by yet
    if has_left or b.goes_first then budget.wait(ctx, parent, b, met_by(ctx, above(ctx, b.id), 1)) end
  end

  -- settle: a budget that stood somewhere, and whose turn is over or of which something changed: it stands where it must, or rests.
  function budget.settle(ctx, b)
    if waiting.first(ctx, key_of(ctx, b.id)) then budget.stand(ctx, b) else rest(ctx, b) end
  end

  -- go_on: a budget may have a slot free. Replies whether it waited for one and goes on.
  function budget.go_on(ctx, id)
    local b = budget.get(ctx, id)
    if b.place ~= ctx.k.full or b.p and slots.is_full(ctx, id, b.p) then return false end
    b.resumed_at, b.is_open = max(b.resumed_at, ctx.now), nil
    budget.settle(ctx, b)
    return true
  end

  -- mend: a budget that waits for a slot stands where it must, though somebody may have deleted that set.
  function budget.mend(ctx, id)
    local b = budget.get(ctx, id)
    if b.place ~= ctx.k.full or pcall_redis('ZSCORE', ctx.k.full, id) then return end -- or the key holds something else
    b.stands = nil
    budget.settle(ctx, b)
  end

  -- put_right: a budget of which anything may have changed: its due is put right when it is read, here its place is.
  function budget.put_right(ctx, id)
    local b = budget.get(ctx, id)
    if not b.place or b.place == ctx.k.rest then return change(ctx, b) end
    local was_stopped = b.place == ctx.k.paused or b.place == ctx.k.full or b.place == ctx.k.refused
    if was_stopped and b.p and not b.p.paused and not b.p.refused and not slots.is_full(ctx, id, b.p) then
      b.resumed_at, b.is_open = max(b.resumed_at, ctx.now), nil
    end
    local parent = b.p and not b.p.refused and b.p.parent
    local stays = parent and b.place == key_of(ctx, parent) and budget.may_go_by_itself(ctx, b)
    if not stays then budget.settle(ctx, b) end
  end

  -- passed: of the budgets that changed those through which jobs passed, and no more, rest again: most. Replies the others.
  -- The time that is stored of such a budget lies a second after the end of its rest, so that the calls of that second have nothing to write. This
  -- server knows the real end (tree/share). A server that takes over, or that was restarted, believes what is stored. So no job leaves too early, and
  -- the first one leaves an interval late at most, for a due further ahead is not believed (put_right, tree/budget).
  -- A server that lets a job pass must change what another one has stored: else that one would believe what it knew, if it came back. It does:
  -- either the new end lies after what is stored, or the job had to wait, and then the real end is written. A real end is a whole number; a time
  -- that is stored ahead ends with half a microsecond, so that the two are never the same.
  local function passed(ctx, changed)
    local now, rested, list, earliest, others = ctx.now, ctx.k.rest, places.resting(ctx), huge, {}
    local n, before, text = #list, nil, nil
    for i = 1, #changed do
      local b = changed[i]
      if b.is_open and not b.is_stored and not b.fresh and b.stands == b.place then
        local at, stored = b.due + b.is_open.makes_up, b.stands_at
        b.at, b.changed = at, false
        if at > now and (not b.place or at > stored or at + AHEAD_US < stored) then
          local till = b.p.interval_us < AHEAD_US and at + AHEAD_US or at -- of a slower one there is something to write with each job anyway
          if till ~= before then -- many have the same
            before, text = till, format('%.1f', till)
            if till < earliest then earliest = till end
          end
          list[n + 1], list[n + 2] = text, b.id
          n = n + 2
          b.place, b.stands, b.stands_at, b.covered = rested, rested, till, till
        end
      else
        others[#others + 1] = b
      end
    end
    if earliest < ctx.memory.rest_us then ctx.memory.rest_us = earliest end
    return others
  end

  -- flush: write what changed of budgets, before their places are written (queue/places).
  -- writes  budgets      cost  at most 2 calls
  function budget.flush(ctx)
    local all, add, gone, rested = ctx.memory.budgets, {}, {}, ctx.k.rest
    -- Of whom a timed setting ended, and this call is the first to see that: what stored it is gone when the call is over, so nobody else would
    -- put its place right. Each may move the one above, so the list may grow.
    for _, b in ipairs(all.changed) do
      if b.fresh and b.p.over then
        budget.put_right(ctx, b.id)
        ctx.memory.refused_again = true
      end
    end
    local changed = passed(ctx, all.changed)
    for i = 1, #changed do
      local b = changed[i]
      if not b.place or b.place == rested then rest(ctx, b) end
      local place = b.place
      if place and place ~= rested then
        add[#add + 1], add[#add + 2], b.is_stored = b.id, budget.encode(ctx, b), true
        if waiting.budget(ctx, place) then place = nil end
      elseif b.is_stored then
        gone[#gone + 1], b.is_stored = b.id, false
      end
      if place ~= b.stands or b.at ~= b.stands_at then places.note(ctx, b.id, b.stands, place, b.at) end
      b.stands, b.stands_at = place, b.at
      if b.is_open then budget.cover(ctx, b) end
      if b.fresh then
        bucket.mark_reached(ctx, { bucket = b.id, spreads = b.spreads, p = b.p })
        b.fresh = false
      end
      b.changed = false
    end
    base.write(call, 'HSET', ctx.k.budgets, add)
    base.write(call, 'HDEL', ctx.k.budgets, gone)
    all.changed, ctx.write_budgets = {}, false -- last: where the above raises, nothing that is remembered is believed
    all.is_written = false -- until their places are
  end
end
