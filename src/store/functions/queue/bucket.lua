-- needs: base, base.call, jobs.slots, pace.brake, policy.record, policy.settings, queue.places, tree.waiting
-- Buckets: what is true of one, and where it waits from now on. Every step does the same four things with a bucket:
--   places.load     what is stored of it               bucket.decide   what is true of it now (writes nothing)
--   bucket.place    where it waits from now on         places.commit   note that; it is written at the end of the call
--
-- The state `s` of a bucket:
--   bucket, queue, p       its name, its queue's key, its policy
--   place, stored_due      where it stands (queue/places), and its due there
--   due                    as it is now; nil: none, so at once
--   len, over              jobs in the queue that count, and those above its level, to be cut
--   level, stored_level    how many it may keep because its capacity was lowered under it; nil: its capacity
--   fresh                  something changed for it and has not been marked as having reached it; spreads: with others
--   retry_ready            a retry of it could leave, were it due
--   brake                  its quotas and its slow-down, where it has any
--   ends                   the end of its next job, where it comes to wait for a share

local bucket = {}
do
  local policy_of = record.policy_of

  local PARKED_US = 1000000 -- a bucket that cannot go on is looked at again after so long, or its interval

  -- levels_of: the levels of some buckets, in their order; where no bucket has one (see `drain`) nothing is read.
  function bucket.levels_of(ctx, names)
    local levels = {}
    if #names == 0 or not ctx.has_levels then return levels end
    local found = call('HMGET', ctx.k.level, unpack(names))
    for i = 1, #names do levels[i] = tonumber(found[i] or nil) end
    return levels
  end

  -- before: what applied to a bucket when it was last put right, where that may not be what applies now; nil where it is. The second
  -- reply says that it must be marked.
  --   not reached by the change that spreads           what applied before that
  --   reached, and a setting of a glob ended since     what applied when it was reached
  --   a timed setting of its own name ended            that one
  local function before(ctx, name, p)
    local prev, ended_us = policy_of(ctx.prev, name), ctx.rec.ended_us
    local is_same = prev == p -- the very same policy: the change does not concern this bucket
    if is_same and ended_us == 0 then return nil, false end
    local of_page, reached_us = ctx.reached_of, nil
    if of_page and of_page[name] ~= nil then reached_us = of_page[name] else reached_us = call('HGET', ctx.k.reached, name) end
    if not reached_us then
      if is_same then return nil, false end
      return prev, true
    end
    if reached_us + 0 < ended_us then return record.as_of(ctx.rec, name, reached_us + 0), true end
    return p.over, false
  end

  -- goes_on: whether a bucket waits in its place for an order that holds no more.
  function bucket.goes_on(ctx, place, p, name)
    if place == ctx.k.paused then return not p.paused end
    if place == ctx.k.refused then return not p.refused end
    if place == ctx.k.full then return not slots.is_full(ctx, name, p) end
    return places.is_held(ctx, place) and place ~= waiting.route_key(ctx, p.route)
  end

  -- was: what a bucket must be put right from, if its policy is changed in this call: as `before`, or what applies now.
  function bucket.was(ctx, name)
    local p = policy_of(ctx.rec, name)
    return p and (ctx.prev and before(ctx, name, p) or p.over or p)
  end

  bucket.before = before

  -- decide: the state of a bucket, from what was loaded of it, into s (used again for one bucket after the other, for making a
  -- table for each is most of what this costs).
  -- A queue may hold its capacity, or its level where the capacity was lowered under it. Where a change has not reached this bucket
  -- yet, one that spreads or the end of a setting of its own, the larger of the old and the new capacity counts, and the due is
  -- re-anchored: last dispatch + the new interval. No due lies further ahead than what the last job paid: beyond that, the clock stepped
  -- back. A bucket that is paused no more, or that another route keeps from going than its own, goes on now, at its rate: that wait
  -- counts neither as lateness nor as credit; one with a brake goes on at its end (pace/brake), and none before its partition did.
  -- `p` is a policy that is not in force.
  -- reads   what was reached, while a change spreads      writes  nothing
  function bucket.decide(ctx, s, name, queue, len, place, due, level, p)
    local now = ctx.now
    p = p or ctx.rec.plain or policy_of(ctx.rec, name)
    s.bucket, s.queue, s.p, s.place, s.stored_due, s.stored_level = name, queue, p, place, due, level
    s.fresh, s.spreads, s.retry_ready, s.parked, s.due_text, s.met, s.ends = false, false, false, false, false, false, false
    s.picked, s.turn_ends = false, false
    local keeps = p.capacity
    if level and level > keeps then keeps = level end
    local old, br, reach_us = p.over, false, p.interval_us
    if p.quotas or p.job or ctx.has_slow or ctx.has_windows or ctx.has_paid or ctx.brakes then br = brake.of(ctx, name, p) end
    s.brake = br or false
    if br then
      if due and br.pace then due = br.pace end
      reach_us = brake.reach_us(br, p)
    end
    if ctx.prev then old, s.spreads = before(ctx, name, p) end
    if ctx.was and ctx.was[name] then old, s.spreads = ctx.was[name], ctx.prev ~= nil end
    if old then
      s.fresh = true
      keeps = max(keeps, old.capacity)
      if due and brake.is_other_pace(old, p) then due = brake.re_anchor(ctx, br, old, p, due) end
    end
    if due and due > now + reach_us then due = now + reach_us end
    if due and due <= now and place == ctx.k.rest then due = nil end
    if due and due < now and bucket.goes_on(ctx, place, p, name) then due = now end
    if br then due = brake.hold(ctx, br, p, due) end
    if due and due < ctx.resumed_at then due = ctx.resumed_at end
    if len > keeps then s.over, len = len - keeps, keeps else s.over = 0 end
    s.due, s.len = due, len
    s.level = len > p.capacity and len or nil
    return s
  end

  -- where: the place of a bucket that nothing but its rate keeps from going. It is the only one who decides that.
  function bucket.where(k, has_work, due, now)
    if has_work then return k.schedule end
    if due > now then return k.rest end
    return nil
  end

  -- held_place: where a bucket waits that its route keeps from going.
  function bucket.held_place(ctx, s)
    return waiting.route_key(ctx, s.p.route)
  end

  -- place: where a bucket waits from now on, as its state has it.
  function bucket.place(ctx, s)
    local has_work, p = s.len > 0 or s.retry_ready, s.p
    if has_work and (p.parent or p.concurrency) then
      if p.refused then return ctx.k.refused end
      if p.paused then return ctx.k.paused end
      if p.concurrency and slots.is_full(ctx, s.bucket, p) then return ctx.k.full end
      if p.parent and s.due <= ctx.now and s.place == waiting.key(ctx, p.parent) then return s.place end
    end
    if has_work and p.paused then return ctx.k.paused end
    -- A held one that is due stays until it is released, or its policy names another route.
    if has_work and s.due <= ctx.now and s.place == bucket.held_place(ctx, s) then return s.place end
    return bucket.where(ctx.k, has_work, s.due, ctx.now)
  end

  -- park: a bucket cannot go on for a reason that nobody reports: it is looked at again later, and the others go on.
  function bucket.park(ctx, s)
    s.due = max(s.due or ctx.now, ctx.now + max(PARKED_US, s.p.interval_us))
    places.commit(ctx, s, ctx.k.schedule)
  end

  -- keep_level: write the level of a bucket where it changed.
  function bucket.keep_level(ctx, s)
    if s.level == s.stored_level then return end
    if s.level then
      call('HSET', ctx.k.level, s.bucket, s.level)
      ctx.has_levels = true
    else
      call('HDEL', ctx.k.level, s.bucket)
    end
    s.stored_level = s.level
  end

  -- expect: these buckets are decided next: which of them a change has reached is read in one call.
  function bucket.expect(ctx, names)
    if not ctx.prev or #names == 0 then return end
    local found, of_page = call('HMGET', ctx.k.reached, unpack(names)), {}
    for i, name in ipairs(names) do of_page[name] = found[i] end
    ctx.reached_of = of_page
  end

  -- mark_reached: what changed has reached this bucket. It is written with its place (`flush`).
  function bucket.mark_reached(ctx, s)
    if s.spreads then
      ctx.marks = ctx.marks or {}
      local n = #ctx.marks
      ctx.marks[n + 1], ctx.marks[n + 2] = s.bucket, ctx.now_text
    end
    if s.p.over then settings.drop_over(ctx, s.bucket) end
    s.fresh, s.spreads = false, false
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
