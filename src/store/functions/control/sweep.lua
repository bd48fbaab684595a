-- needs: base, context, context.settings, control.change, limits.constraints, limits.recount, limits.slots,
--   policy.chain, policy.record, queue.delayed, queue.rejected, queue.retries, state, state.bucket, state.waiting,
--   tree.budget
-- The sweep: one pass over every node in a set of states and over every retry, a batch in each drain. It applies a
-- rollout to all of them, and corrects what is too far ahead after the clock stepped back. The first sweep counts the
-- delayed jobs (queue/delayed).
-- A rollout that adds limits of what is in flight also counts the jobs that are out (limits/recount), and then lets the
-- nodes go on that waited for that.
-- A sweep starts when a record is new, when the clock went back, and at the first drain after the server or the library
-- started. Its position is only in memory: where that is lost, it begins anew. After a setting of a budget has changed,
-- the refused nodes are looked at once more.

local sweep = {}
do
  local spent = context.spent

  -- bring_back: limit a due that is too far ahead to one interval from now. Outside a rollout nothing else can be wrong
  -- on the schedule and in `rest`.
  local function bring_back(ctx, s, name, from, due)
    if chain.budget_of(name) then
      if due > ctx.now then budget.reconcile(ctx, name) end
      return
    end
    local p = record.policy_of(ctx.rec, name)
    -- A slow-down may last too long all the same.
    if due <= ctx.now + p.interval_us and not constraints.is_slowed(ctx, name, p) then return end
    bucket.decide(ctx, s, name, nil, 0, from, due, nil)
    state.enter(ctx, s, s.due and from or nil, 'change') -- a cooled bucket is idle: nothing of it stays
  end

  -- reconcile: reconcile a node after any change. A bucket in a line goes back on the schedule where its policy names
  -- another budget or route now, or where it is not due any more.
  local function reconcile(ctx, s, name, from, due, allowance)
    if chain.budget_of(name) then return budget.reconcile(ctx, name) end
    local queue, len, in_rollout = ctx.k.queues .. name, 0, ctx.old_rec or from == ctx.k.refused
    if in_rollout then len = bucket.length_of(ctx, queue) or 0 end
    bucket.decide(ctx, s, name, queue, len, from, due, allowance)
    -- A call that has cut as much as one may still reconciles nodes that need no cut, and one more that does. Otherwise
    -- a flood into full buckets could hold up a rollout.
    if s.over > 0 and spent(ctx) then
      if ctx.swept_over then return false end
      ctx.swept_over = true
    end
    if in_rollout and not rejected.trim_to_capacity(ctx, s) then s.due = s.due or s.stored_due end
    if in_rollout and (s.p.paused or s.p.refused or from == ctx.k.paused or from == ctx.k.refused
      or from == ctx.k.full or waiting.is_set(ctx, from) or from ~= ctx.k.rest and slots.is_full(ctx, name, s.p)) then
      s.retry_ready = retries.has_ended(ctx, name)
      if not s.due and (s.len > 0 or s.retry_ready) then s.due = ctx.now end
      if s.p.ordered then retries.index(ctx, name, true) end -- it may wait for a failed job from now on
      state.enter(ctx, s, s.due and state.decide(ctx, s) or nil, 'change')
    elseif waiting.is_set(ctx, from) then
      local stays = s.due <= ctx.now and from == state.line_of(ctx, s.p)
      state.enter(ctx, s, stays and from or ctx.k.schedule, 'change')
    elseif s.due then
      state.enter(ctx, s, from, 'change')
    else
      state.enter(ctx, s, nil, 'change') -- cooled, so nothing of it stays
    end
  end

  -- page_of: reconcile one page of a set, or of all waiting sets where no state is named. Replies whether it was the
  -- last page.
  local function page_of(ctx, at, from)
    local names, dues, cursor, states
    if from then
      names, dues, cursor = state.page(ctx, from, at.cursor)
    else
      names, dues, cursor, states = waiting.page(ctx, at.cursor)
    end
    local allowances, s = (ctx.old_rec or from == ctx.k.refused) and bucket.allowances_of(ctx, names) or {}, {}
    local step = (ctx.old_rec or not from or from == ctx.k.refused) and reconcile or bring_back
    record.expect(ctx.rec, names)
    bucket.expect(ctx, names)
    constraints.expect(ctx, names)
    for i, name in ipairs(names) do
      -- A bucket with an ended setting of its own name is reconciled for that (control/change).
      local p = record.policy_of(ctx.rec, name)
      local is_here = ctx.old_rec or p and not p.over
      if is_here and step(ctx, s, name, from or states[i], dues[i], allowances[i]) == false then
        state.flush(ctx)
        ctx.applied_of = false
        return false -- the same page again: those done by now are marked as applied
      end
    end
    state.flush(ctx)
    at.cursor, ctx.applied_of = cursor, nil
    return cursor == '0'
  end

  -- pass_over_settings: shorten settings that would last too long after the clock stepped back. Replies whether that
  -- was the last page.
  local function pass_over_settings(ctx, at)
    if not ctx.rec.version then return true end
    local ok, cursor = pcall(settings.bring_back, ctx, at.cursor)
    if not ok then context.note(ctx, 'wrong-type', ctx.k.settings) end -- a key of settings: the sweep goes on
    at.cursor = ok and cursor or '0'
    return at.cursor == '0'
  end

  -- The phases before the refused nodes; after those come the retries.
  local NEXT = { settings = 'paused', paused = 'full', full = 'rest', rest = 'schedule', schedule = 'shares',
    shares = 'refused' }

  -- pass: a page of one of these phases: settings, a set of states, or (shares) all waiting sets. Replies whether it
  -- was the last one.
  local function pass(ctx, at)
    local phase = at.phase
    if phase == 'settings' then return pass_over_settings(ctx, at) end
    if phase == 'full' and not ctx.may_be_full then return true end
    if phase == 'shares' then return not (ctx.has_budgets or ctx.held ~= '') or page_of(ctx, at, nil) end
    return page_of(ctx, at, ctx.k[phase])
  end

  -- over: end the rollout: it is applied to every bucket. Replies false where a setting of a glob ended since the sweep
  -- began: then another pass is needed.
  local function over(ctx, at)
    if not ctx.old_rec then return true end
    if ctx.rec.ended_us > at.since_us then return false end
    call('HDEL', ctx.k.policy, 'prev', 'prev_id', 'prev_globs')
    call('UNLINK', ctx.k.reached)
    ctx.old_rec, ctx.rollout, ctx.memory.old_view = nil, nil, nil
    if ctx.rec.ended_us > 0 then settings.drop_ended_globs(ctx) end
    settings.forget_if_none(ctx)
    return true
  end

  -- look_at_refused: reconcile one page of the refused nodes: a setting of a budget has changed, so their chains may be
  -- resolved now. One pass ends before the next begins. Replies whether there was anything to look at.
  local function look_at_refused(ctx)
    local m = ctx.memory
    if ctx.old_rec or not m.refused_at and not m.refused_again then return false end -- a rollout looks at them last
    if not m.refused_at then m.refused_at, m.refused_again = { cursor = '0' }, false end
    if call('EXISTS', ctx.k.refused) == 0 then
      m.refused_at = nil
      return false
    end
    if page_of(ctx, m.refused_at, ctx.k.refused) then m.refused_at = nil end
    return true
  end

  -- counts: a part of the pass over what is in flight, where this rollout adds limits. Replies whether it is over. A
  -- part that this server has looked at before another one may have written is looked at once more.
  local function counts(ctx, at)
    if not ctx.old_rec or record.slots_text(ctx.rec) == record.slots_text(ctx.old_rec) or not slots.can_take(ctx) then
      return true
    end
    if not at.count or at.count.era ~= ctx.memory.era then at.count = { era = ctx.memory.era } end
    return recount.part(ctx, at.count, function(id) return slots.is_gained(ctx, id) end)
  end

  -- go_on: a page of the blocked nodes, once their jobs are counted: those with a free slot go on. Replies whether it
  -- was the last one.
  local function go_on(ctx, at)
    if spent(ctx) then return false end
    local names, _, cursor = state.page(ctx, ctx.k.full, at.cursor)
    if change.reconcile(ctx, names) < #names then return false end -- the same page again
    at.cursor = cursor
    return cursor == '0'
  end

  -- count_marked: a part of the pass over what is in flight for nodes whose own setting has added a limit. Replies
  -- whether there is more to do.
  local function count_marked(ctx)
    local m = ctx.memory
    if not ctx.has_uncounted and not m.recount or not slots.can_take(ctx) then return false end
    local at = m.recount
    if not at or at.era ~= m.era then
      at = { era = m.era, marks = slots.marked(ctx) }
      m.recount = at
    end
    if not at.done then
      if not recount.part(ctx, at, function(id) return at.marks[id] ~= nil end) then return true end
      at.done = slots.unmark(ctx, at.marks)
      return true
    end
    for _ = 1, change.reconcile(ctx, at.done) do table.remove(at.done, 1) end
    if not at.done[1] then m.recount = nil end
    return m.recount ~= nil or ctx.has_uncounted
  end

  local function begin_retries(ctx, at)
    at.phase, at.cursor, at.last = 'retries', '0', false
    delayed.begin_count(ctx, at)
  end

  -- step: the next slice: a batch, or an eighth of one where other work waits and no rollout is going on. Replies
  -- whether there is more to do, and whether dues may have changed.
  function sweep.step(ctx, busy)
    local m, batch = ctx.memory, ctx.limits.batch
    ctx.page = busy and not ctx.old_rec and ceil(batch / 8) or batch
    if not m.sweep or ctx.old_rec and m.sweep.rollout ~= ctx.rollout then
      local phase = ctx.rec.version and not (m.sweep and m.sweep.phase ~= 'settings') and 'settings' or 'paused'
      m.sweep = { phase = phase, cursor = '0', waiting = {}, rollout = ctx.rollout, since_us = ctx.now }
    end
    local at = m.sweep
    if look_at_refused(ctx) or count_marked(ctx) then return true, true end
    if at.phase == 'done' then
      if not ctx.old_rec then return false, false end
      at.phase, at.cursor, at.since_us = 'paused', '0', ctx.now
    end
    if NEXT[at.phase] then
      if pass(ctx, at) then at.phase, at.cursor = NEXT[at.phase], '0' end
    elseif at.phase == 'refused' then
      if page_of(ctx, at, ctx.k.refused) then at.phase, at.cursor, at.count = 'counts', '0', nil end
    elseif at.phase == 'counts' then
      if counts(ctx, at) then
        local was_counted = at.count ~= nil
        if not over(ctx, at) then
          at.phase, at.since_us = 'paused', ctx.now
        elseif was_counted then
          at.phase = 'full again'
        else
          begin_retries(ctx, at)
        end
      end
    elseif at.phase == 'full again' then
      if go_on(ctx, at) then begin_retries(ctx, at) end
    elseif retries.sweep(ctx, at) then
      if delayed.end_count(ctx, at) then at.phase = 'done' else begin_retries(ctx, at) end
    end
    return at.phase ~= 'done', true
  end
end
