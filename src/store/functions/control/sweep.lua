-- needs: base, base.call, jobs.slots, pace.brake, policy.chain, policy.record, policy.settings, queue.bucket,
--   queue.delayed, queue.places, queue.rejected, queue.retries, tree.budget, tree.waiting
-- The sweep: one pass over every bucket that stands somewhere and over every retry, a batch a drain. It carries a change of
-- policy to all of them, and it finds what lies too far ahead after the clock stepped back. The first one counts the delayed jobs (queue/delayed). It starts when a record is new,
-- when the clock went back, and at the first drain after the server or the library started; where it stands is kept in memory
-- only, and it begins anew when that is lost. After what is set for a budget has changed it comes by the refused once more.

local sweep = {}
do
  local spent = context.spent

  -- bring_back: a bucket whose due lies too far ahead is due one interval from now. That is all that can be wrong on the schedule and
  -- at rest while no change spreads.
  local function bring_back(ctx, s, name, place, due)
    if chain.budget_of(name) then
      if due > ctx.now then budget.put_right(ctx, name) end
      return
    end
    local p = record.policy_of(ctx.rec, name)
    if due <= ctx.now + p.interval_us and not brake.is_slowed(ctx, name, p) then return end -- a slow-down may last too long all the same
    bucket.decide(ctx, s, name, nil, 0, place, due, nil)
    places.commit(ctx, s, s.due and place) -- of one at rest that is past its due nothing stays
  end

  -- put_right: a bucket of which anything may have changed. A held bucket goes back on the schedule if its policy names another
  -- route now, or if it is not due any more.
  local function put_right(ctx, s, name, place, due, level)
    if chain.budget_of(name) then return budget.put_right(ctx, name) end
    local queue, len, spreads = ctx.k.queues .. name, 0, ctx.prev or place == ctx.k.refused
    if spreads then len = bucket.length_of(ctx, queue) or 0 end
    bucket.decide(ctx, s, name, queue, len, place, due, level)
    -- A call that has cut as much as one may goes on with those of which nothing is cut, and with one more: whoever floods full
    -- buckets must not hold up a change.
    if s.over > 0 and spent(ctx) then
      if ctx.swept_over then return false end
      ctx.swept_over = true
    end
    if spreads and not rejected.settle(ctx, s) then s.due = s.due or s.stored_due end
    if spreads and (s.p.paused or s.p.refused or place == ctx.k.paused or place == ctx.k.refused
      or place == ctx.k.full or waiting.is_set(ctx, place) or place ~= ctx.k.rest and slots.is_full(ctx, name, s.p)) then
      s.retry_ready = retries.has_ended(ctx, name)
      if not s.due and (s.len > 0 or s.retry_ready) then s.due = ctx.now end
      if s.p.ordered then retries.index(ctx, name, true) end -- it may wait for one that failed from now on
      places.commit(ctx, s, s.due and bucket.place(ctx, s))
    elseif places.is_held(ctx, place) then
      local leaves = s.due > ctx.now or place ~= bucket.held_place(ctx, s)
      places.commit(ctx, s, leaves and ctx.k.schedule or place)
    elseif s.due then
      places.commit(ctx, s, place)
    else
      places.commit(ctx, s, nil) -- at rest, and past its due: nothing of it stays
    end
  end

  -- page_of: a page of one of the sets, or of all waiting sets where no place is named. Replies whether it was the last page.
  local function page_of(ctx, at, place)
    local names, dues, cursor, stands
    if place then names, dues, cursor = places.page(ctx, place, at.cursor) else names, dues, cursor, stands = waiting.page(ctx, at.cursor) end
    local levels, s = (ctx.prev or place == ctx.k.refused) and bucket.levels_of(ctx, names) or {}, {}
    local step = (ctx.prev or not place or place == ctx.k.refused) and put_right or bring_back
    record.expect(ctx.rec, names)
    bucket.expect(ctx, names)
    brake.expect(ctx, names)
    for i, name in ipairs(names) do
      -- One of which a setting of its own has ended is put right for that (control/change).
      local p = record.policy_of(ctx.rec, name)
      local is_here = ctx.prev or p and not p.over
      if is_here and step(ctx, s, name, place or stands[i], dues[i], levels[i]) == false then
        places.flush(ctx)
        ctx.reached_of = false
        return false -- the same page again: those done by now are marked as reached
      end
    end
    places.flush(ctx)
    at.cursor, ctx.reached_of = cursor, nil
    return cursor == '0'
  end

  -- pass_over_settings: those that a clock that stepped back would let hold for too long. Replies whether that was the last page.
  local function pass_over_settings(ctx, at)
    if not ctx.rec.version then return true end
    local ok, cursor = pcall(settings.bring_back, ctx, at.cursor)
    if not ok then context.note(ctx, 'wrong-type', ctx.k.settings) end -- one of the keys of settings: the sweep goes on all the same
    at.cursor = ok and cursor or '0'
    return at.cursor == '0'
  end

  -- over: a change has reached every bucket. Replies false where a setting of a glob ended since the sweep began: then it must come
  -- by once more.
  local function over(ctx, at)
    if not ctx.prev then return true end
    if ctx.rec.ended_us > at.since_us then return false end
    call('HDEL', ctx.k.policy, 'prev', 'prev_id', 'prev_globs')
    call('UNLINK', ctx.k.reached)
    ctx.prev, ctx.spread, ctx.memory.prev_view = nil, nil, nil
    if ctx.rec.ended_us > 0 then settings.drop_ended_globs(ctx) end
    settings.forget_if_none(ctx)
    return true
  end

  -- look_at_refused: a page of those whose budgets could not be found, or were too many: what is set for a budget has changed, so they may have
  -- theirs now. One pass is ended before the next begins. Replies whether there was anything to look at.
  local function look_at_refused(ctx)
    local m = ctx.memory
    if ctx.prev or not m.refused_at and not m.refused_again then return false end -- a change that spreads comes by them last
    if not m.refused_at then m.refused_at, m.refused_again = { cursor = '0' }, false end
    if call('EXISTS', ctx.k.refused) == 0 then
      m.refused_at = nil
      return false
    end
    if page_of(ctx, m.refused_at, ctx.k.refused) then m.refused_at = nil end
    return true
  end

  local function begin_retries(ctx, at)
    at.phase, at.cursor, at.last = 'retries', '0', false
    delayed.begin_count(ctx, at)
  end

  -- go_on: the next slice: a batch, or an eighth of one where other work waits and no change spreads. Replies whether there is
  -- more to do, and whether dues may have changed.
  function sweep.go_on(ctx, busy)
    local m, batch = ctx.memory, ctx.limits.batch
    ctx.page = busy and not ctx.prev and ceil(batch / 8) or batch
    if not m.sweep or ctx.prev and m.sweep.spread ~= ctx.spread then
      local phase = ctx.rec.version and not (m.sweep and m.sweep.phase ~= 'settings') and 'settings' or 'paused'
      m.sweep = { phase = phase, cursor = '0', waiting = {}, spread = ctx.spread, since_us = ctx.now }
    end
    local at = m.sweep
    if look_at_refused(ctx) then return true, true end
    if at.phase == 'done' then
      if not ctx.prev then return false, false end
      at.phase, at.cursor, at.since_us = 'paused', '0', ctx.now
    end
    if at.phase == 'settings' then
      if pass_over_settings(ctx, at) then at.phase, at.cursor = 'paused', '0' end
    elseif at.phase == 'paused' then
      if page_of(ctx, at, ctx.k.paused) then at.phase, at.cursor = 'full', '0' end
    elseif at.phase == 'full' then
      if not ctx.may_be_full or page_of(ctx, at, ctx.k.full) then at.phase, at.cursor = 'rest', '0' end
    elseif at.phase == 'rest' then
      if page_of(ctx, at, ctx.k.rest) then at.phase, at.cursor = 'schedule', '0' end
    elseif at.phase == 'schedule' then
      if page_of(ctx, at, ctx.k.schedule) then at.phase, at.cursor = 'shares', '0' end
    elseif at.phase == 'shares' then
      local has_any = ctx.has_budgets or ctx.held ~= ''
      if not has_any or page_of(ctx, at, nil) then at.phase, at.cursor = 'refused', '0' end
    elseif at.phase == 'refused' then
      if page_of(ctx, at, ctx.k.refused) then
        if over(ctx, at) then
          begin_retries(ctx, at)
        else
          at.phase, at.cursor, at.since_us = 'paused', '0', ctx.now
        end
      end
    elseif retries.sweep(ctx, at) then
      if delayed.end_count(ctx, at) then at.phase = 'done' else begin_retries(ctx, at) end
    end
    return at.phase ~= 'done', true
  end
end
