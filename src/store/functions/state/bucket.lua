-- needs: base, context, context.memory, context.settings, limits.constraints, limits.slots, policy.record, state,
--   state.waiting
-- Buckets: what is known of one. Most steps do the same four things with a bucket:
--   state.load     read what is stored of it          bucket.decide   decide what is true of it now (writes nothing)
--   state.decide   decide its state from now on       state.enter     note that; it is written at the end of the call
--
-- The fields of a bucket, `s`:
--   bucket, queue, p       its name, its queue's key, its policy
--   state, stored_due      its state (the key of its set), and its due there
--   due                    its due now; nil: none, so at once
--   len, over              jobs in the queue that count, and those above its allowance, to be cut
--   allowance, stored_allowance  how many jobs it may keep after its capacity was lowered; nil: its capacity
--   unapplied              something changed for it and is not marked as applied yet; in_rollout: in a rollout
--   retry_ready            a retry of it could leave, if it were due
--   constraint             its constraint (limits/constraints), false: none
--   rank                   the rank of its next job, where it is queued or held
--   left_state, left_rank  'held' and its rank, where it was taken out of the line of its route for its turn
--   granted, finish        a budget granted its turn, with this finish tag
--   met                    the eligible time by its path, where that is later than its due
--   parked                 something could not be written: it is tried again later

local bucket = {}
do
  local policy_of = record.policy_of

  local PARKED_US = 1000000 -- a parked bucket is tried again after so long, whatever its rate

  -- allowances_of: the allowances of some buckets, in their order. Where no bucket has one (see `drain`) nothing is
  -- read.
  function bucket.allowances_of(ctx, names)
    local allowances = {}
    if #names == 0 or not ctx.has_allowances then return allowances end
    local found = call('HMGET', ctx.k.level, unpack(names))
    for i = 1, #names do allowances[i] = tonumber(found[i] or nil) end
    return allowances
  end

  -- applied_policy: the policy that was last applied to a bucket, where it may differ from the one in force; else nil.
  -- The second reply says whether the bucket must be marked as applied.
  --   the rollout has not been applied yet                      the policy before the rollout
  --   applied, and a setting of a glob has ended since          the policy when it was applied
  --   a timed setting of its own name has ended                 the policy with that setting
  local function applied_policy(ctx, name, p)
    local old_policy, ended_us = policy_of(ctx.old_rec, name), ctx.rec.ended_us
    local is_same = old_policy == p -- the very same policy: the change does not concern this bucket
    if is_same and ended_us == 0 then return nil, false end
    local of_page, applied_us = ctx.applied_of, nil
    if of_page and of_page[name] ~= nil then
      applied_us = of_page[name]
    else
      applied_us = call('HGET', ctx.k.reached, name)
    end
    if not applied_us then
      if is_same then return nil, false end
      return old_policy, true
    end
    if applied_us + 0 < ended_us then return record.as_of(ctx.rec, name, applied_us + 0), true end
    return p.over, false
  end

  -- is_freed: whether what stopped a bucket in its state has ended.
  function bucket.is_freed(ctx, from, p, name)
    if from == ctx.k.paused then return not p.paused end
    if from == ctx.k.refused then return not p.refused end
    if from == ctx.k.full then return not slots.is_full(ctx, name, p) end
    return waiting.is_held(ctx, from) and from ~= state.line_of(ctx, p)
  end

  -- policy_before: the policy that a bucket must be reconciled from, if its policy changes in this call:
  -- `applied_policy`, or the one in force.
  function bucket.policy_before(ctx, name)
    local p = policy_of(ctx.rec, name)
    return p and (ctx.old_rec and applied_policy(ctx, name, p) or p.over or p)
  end

  -- changed_from: the policy that a bucket or budget must be reconciled from, where a change is not applied to it yet;
  -- else nil. The second reply says whether that is in a rollout.
  function bucket.changed_from(ctx, id, p)
    local before = ctx.policies_before and ctx.policies_before[id]
    if before then return before, ctx.old_rec ~= nil end
    if ctx.old_rec then return applied_policy(ctx, id, p) end
    return p.over, false
  end

  -- decide: what is true of a bucket now, from what was loaded of it. It fills `s`, which is reused for one bucket
  -- after the other: making a table for each would be most of the cost.
  -- A queue may hold its capacity, or its allowance where the capacity was lowered. Where a change (a rollout, or the
  -- end of a timed setting) is not applied to this bucket yet, the larger of the old and the new capacity counts, and
  -- the due is re-anchored: last dispatch + the new interval. No due lies further ahead than the last job was charged:
  -- beyond that, the clock stepped back. A bucket that is no longer paused, refused or blocked, or that waits in
  -- the line of a route that is no longer its own, resumes now, at its rate: that wait counts neither as lateness nor
  -- as credit. A bucket with a constraint resumes at its end (limits/constraints), and none resumes before its
  -- partition did. `p` is a policy that is not in force.
  -- reads   `reached`, during a rollout; its constraint, slots, retries and settings, where it may have such
  -- writes  nothing at once: a constraint that has changed is noted
  function bucket.decide(ctx, s, name, queue, len, from, due, allowance, p)
    local now = ctx.now
    p = p or ctx.rec.plain or policy_of(ctx.rec, name)
    s.bucket, s.queue, s.p, s.state, s.stored_due, s.stored_allowance = name, queue, p, from, due, allowance
    s.unapplied, s.in_rollout, s.retry_ready, s.parked, s.met, s.rank = false, false, false, false, false, false
    s.granted, s.finish, s.left_state, s.left_rank, s.has_left, s.is_sent = false, false, false, false, false, false
    local keeps = p.capacity
    if allowance and allowance > keeps then keeps = allowance end
    local old, constraint, max_ahead_us = p.over, false, p.interval_us
    if p.quotas or p.job or ctx.stored_constraints or ctx.constraints then
      constraint = constraints.of(ctx, name, p)
    end
    s.constraint = constraint or false
    if constraint then
      if due and constraint.pace then due = constraint.pace end
      max_ahead_us = constraints.max_ahead_us(constraint, p)
    end
    if ctx.old_rec or ctx.policies_before then old, s.in_rollout = bucket.changed_from(ctx, name, p) end
    if old then
      s.unapplied = true
      keeps = max(keeps, old.capacity)
      if due and constraints.changes_pace(old, p) then due = constraints.re_anchor(ctx, constraint, old, p, due) end
    end
    if due and due > now + max_ahead_us then due = now + max_ahead_us end
    if due and due <= now and from == ctx.k.rest then due = nil end
    if due and due < now and bucket.is_freed(ctx, from, p, name) then due = now end
    if constraint then due = constraints.hold(ctx, constraint, p, due) end
    if due and due < ctx.resumed_at then due = ctx.resumed_at end
    if len > keeps then s.over, len = len - keeps, keeps else s.over = 0 end
    s.due, s.len = due, len
    s.allowance = len > p.capacity and len or nil
    return s
  end

  -- park: a bucket cannot let out jobs, and nobody will report when it can: it is tried again later, and others are
  -- served meanwhile. What was noted last says why (context.note). `least_us`: jobs of it may have left that are not
  -- charged.
  function bucket.park(ctx, s, event, least_us)
    s.due = max(s.due or ctx.now, ctx.now + max(PARKED_US, least_us or 0))
    memory.note_parked(ctx.memory, s.bucket, s.due, ctx.noted)
    state.enter(ctx, s, ctx.k.schedule, event)
  end

  -- keep_allowance: write the allowance of a bucket where it changed.
  function bucket.keep_allowance(ctx, s)
    if s.allowance == s.stored_allowance then return end
    if s.allowance then
      call('HSET', ctx.k.level, s.bucket, s.allowance)
      ctx.has_allowances = true
    else
      call('HDEL', ctx.k.level, s.bucket)
    end
    s.stored_allowance = s.allowance
  end

  -- expect: these buckets are decided next: read at once to which of them the rollout was applied.
  function bucket.expect(ctx, names)
    if not ctx.old_rec or #names == 0 then return end
    local found, of_page = call('HMGET', ctx.k.reached, unpack(names)), {}
    for i, name in ipairs(names) do of_page[name] = found[i] end
    ctx.applied_of = of_page
  end

  -- mark_applied: a change is applied to this bucket. The mark is written with its state (`flush`).
  function bucket.mark_applied(ctx, s)
    if s.in_rollout then
      ctx.marks = ctx.marks or {}
      local n = #ctx.marks
      ctx.marks[n + 1], ctx.marks[n + 2] = s.bucket, ctx.now_text
    end
    if s.p.over then
      slots.mark(ctx, s.bucket, s.p.over, s.p)
      settings.drop_over(ctx, s.bucket)
    end
    s.unapplied, s.in_rollout = false, false
  end

  -- length_of: how many jobs are in a queue; nil, with a note, where the key holds something else.
  function bucket.length_of(ctx, queue)
    local len = pcall_redis('LLEN', queue)
    if base.is_error(len) then
      context.note(ctx, 'wrong-type', queue)
      return nil
    end
    return len
  end
end
