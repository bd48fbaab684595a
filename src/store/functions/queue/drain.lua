-- needs: base, base.call, base.keys, base.memory, base.names, control.change, control.sweep, pace.brake,
--   policy.chain, policy.record, policy.settings, queue.bucket, queue.dispatch, queue.places, queue.plain,
--   queue.rejected, queue.retries, route, route.room, tree.budget, tree.serve, tree.waiting
-- The two calls of the pacer: drain lets out what is due and says how long the rest must wait; wake does the same after a
-- look at queues that changed.

local drain = {}
do
  local refuse, is_error, digits = base.refuse, base.is_error, base.digits
  local note, spent, policy_of = context.note, context.spent, record.policy_of

  local HOLD_POLL_US = 20000 -- how often a held route is looked at: reading from a stream wakes nobody

  -- general: the turn of the i-th bucket of `work`, whatever is true of it. Where `out` jobs of it have left on the plain way,
  -- `left_at` is its due since. Replies whether it is due again at once.
  local function general(ctx, work, i, queue, len, due, left_at, out)
    local s, given = work.s, min(work.quota, work.share)
    if chain.budget_of(work.names[i]) then
      -- It counts as as many buckets as wait below it, at most a quarter while others are due.
      given = #work.names == 1 and work.quota or min(work.quota, ctx.rec.quarter)
      work.quota = work.quota - given + serve.turn(ctx, work.names[i], given)
      return false
    end
    if left_at then due, given = left_at, min(work.quota, work.share - out) end
    plain.pause(ctx)
    work.decides = true
    bucket.decide(ctx, s, work.names[i], queue, len, work.place or work.places[i], due, work.levels[i])
    work.decides, s.due = false, s.due or ctx.now
    if left_at then s.stored_due = nil end -- what is stored is older
    local rest, is_due = dispatch.turn(ctx, s, given, work.announced[i])
    work.quota = work.quota - given + rest
    return is_due
  end

  -- take_turns: the turns of the due buckets in `work`, from where it stands.
  local function take_turns(ctx, work)
    local names, due, queues = work.names, work.due, ctx.k.queues
    while work.at < #names do
      local left_at, out
      if work.is_plain and not spent(ctx) then
        left_at, out = plain.turns(ctx, work)
        plain.pause(ctx)
        if work.at == #names and not left_at then return end
      end
      if not left_at then
        if work.quota <= 0 or spent(ctx) then
          work.more = true
          return
        end
        work.at = work.at + 1
      end
      local i = work.at
      local queue = queues .. names[i]
      local len = not chain.budget_of(names[i]) and bucket.length_of(ctx, queue) or 0
      if general(ctx, work, i, queue, len, due[2 * i] + 0, left_at, out) then work.more = true end
    end
  end

  -- guarded: run the turns. One that raises (a key of the wrong type, in the middle of it) costs its bucket a wait and no other
  -- bucket anything: the dues of what has left by then must be stored. Replies whether that wrote to the schedule.
  local function guarded(ctx, work, turns)
    work.is_plain = plain.fits(ctx)
    ctx.is_plain = work.is_plain
    if work.is_plain then plain.open(ctx) end
    repeat
      local whole, why = pcall(turns, ctx, work)
      if not whole then
        -- A key of ours is of the wrong type. (Redis' pcall replies a text; a table keeps its code.)
        plain.pause(ctx)
        if work.decides then -- what no bucket can be judged without is damaged: what has left by now is written all the same
          if work.is_plain then plain.close(ctx) end
          pcall(places.flush, ctx)
          error(type(why) == 'table' and why or { err = why })
        end
        local s, name = work.s, work.names[work.at]
        note(ctx, 'raised', ctx.k.queues .. name, type(why) == 'table' and why.err or tostring(why))
        work.quota = work.quota - 1
        if chain.budget_of(name) then
          pcall(serve.park, ctx, name)
        else
          s.bucket, s.p, s.due, s.stored_due = name, policy_of(ctx.rec, name), ctx.now, nil
          s.place = work.place or work.places[work.at]
          bucket.park(ctx, s)
        end
      end
    until whole
    if work.is_plain then plain.close(ctx) end
    return places.flush(ctx)
  end

  -- drain_due: the turns of the buckets that are due, the longest due first. One batch of jobs or buckets, in equal shares, and
  -- for one bucket no more than a quarter while others are due. The buckets that a wake looked at count too. Replies whether
  -- more is due, and where nothing was, when the first will be. `first` is the earliest due, where it is known.
  local function drain_due(ctx, first)
    local batch, due = max(1, ctx.limits.batch - ctx.looked - ctx.turned), nil
    due, first = places.due(ctx, batch, first)
    if not due then return false, first end
    local names = {}
    for i = 1, #due, 2 do names[#names + 1] = due[i] end
    record.expect(ctx.rec, names)
    budget.expect(ctx, names)
    brake.expect(ctx, names)
    local share = #names == 1 and batch or min(ctx.rec.quarter, max(1, floor(batch / #names)))
    local work = {
      s = {}, names = names, due = due, place = ctx.k.schedule, levels = bucket.levels_of(ctx, names),
      announced = retries.announced(ctx, names), at = 0, quota = batch, share = share, more = #names == batch,
    }
    guarded(ctx, work, take_turns)
    return work.more
  end

  -- held_turns: the turns of the first buckets that are held for a route, one job each. They go on now, at their rate: the time for which they
  -- were held counts neither as lateness nor as credit.
  local function held_turns(ctx, r, key, front)
    local names, due = {}, {}
    for i, one in ipairs(front) do
      names[i], due[2 * i] = one.id, ctx.now_text
      waiting.leave(ctx, key, one.id, one.due)
      room.had_turn(ctx, r, one.id) -- before it is held again
    end
    local work = {
      s = {}, names = names, due = due, place = false, places = {}, levels = bucket.levels_of(ctx, names), announced = retries.announced(ctx, names),
      at = 0, quota = #names, share = 1, more = false,
    }
    record.expect(ctx.rec, names)
    budget.expect(ctx, names)
    brake.expect(ctx, names)
    guarded(ctx, work, take_turns)
    for i = work.at + 1, #names do -- the call has read as much as one may: they keep their turns
      waiting.join(ctx, key, names[i], front[i].due, front[i].ends)
    end
    ctx.turned = ctx.turned + work.at
    places.flush(ctx)
  end

  -- turns_at: the turns of the buckets that are held for a route: of as many as it takes, and at most `share`, the one first whose last job left
  -- longest ago. While others stay behind the route takes nobody else's jobs.
  local function turns_at(ctx, name, share)
    local key = waiting.route_key(ctx, name)
    local r = room.for_held(ctx, name, waiting.count(ctx, key) > 0)
    local most = min(r.left, share)
    local front = most > 0 and waiting.front(ctx, key, most) or {}
    if front[1] then held_turns(ctx, r, key, front) end
    if waiting.count(ctx, key) == 0 then return route.free(ctx, name) end
    if r.left > 0 or r.doubled then ctx.more_turns = true end
    room.close(ctx, r)
  end

  -- begin: what comes before the turns of who is due: what there is to be asked for, and the turns of who was held.
  local function begin(ctx)
    ctx.memory.drained_us = ctx.now
    ctx.turned, ctx.more_turns = 0, false
    if settings.first_end(ctx) <= ctx.now then change.end_over(ctx) end
    ctx.has_levels, ctx.has_retries, ctx.has_ended = false, false, false
    if call('EXISTS', ctx.k.level, ctx.k.retries) > 0 then
      ctx.has_levels, ctx.has_retries = call('EXISTS', ctx.k.level) == 1, call('EXISTS', ctx.k.retries) == 1
      if ctx.has_retries then
        retries.announce(ctx)
        ctx.has_ended = retries.any_has_ended(ctx)
      end
    end
    if ctx.held == '' or ctx.only_looks then return end
    if places.adopt_held(ctx) then ctx.more_turns = true end
    local held = route.names_of(ctx.held)
    for _, name in ipairs(held) do turns_at(ctx, name, max(1, floor(ctx.limits.batch / #held))) end
  end

  -- wait_us: how long until something is due: 0 = now, -1 = nothing waits. Buckets at rest wait for nothing.
  local function wait_us(ctx, more, first_due)
    if more then return 0 end
    local at = min(first_due or places.first_due(ctx), retries.first_end(ctx), settings.first_end(ctx))
    if ctx.held ~= '' then at = min(at, ctx.now + HOLD_POLL_US) end
    if next(ctx.memory.counts) then at = min(at, max(ctx.memory.flushed_us + 1000000, ctx.now)) end
    if at == huge then return -1 end
    return max(0, at - ctx.now)
  end

  local function reply_of(ctx, wait)
    return { wait, ctx.dispatched, ctx.rejected, ctx.latest_us, ctx.id or '', ctx.prev and 1 or 0, context.notes_of(ctx) }
  end

  -- finish: the turns of what is due, the sweep, and the reply.
  local function finish(ctx, first_due)
    local more
    more, first_due = drain_due(ctx, first_due)
    if places.forget_rested(ctx) then more = true end
    if brake.forget(ctx) then more = true end
    local sweeps, moved = sweep.go_on(ctx, more)
    if sweeps or ctx.more_turns then more = true end
    if moved then first_due = nil end
    room.count(ctx)
    context.flush_counts(ctx)
    return reply_of(ctx, wait_us(ctx, more, first_due))
  end

  -- open: the context of a call. `ago_us` is for how long the partition is known to go on, '' or nil where it did not stand still: its slot
  -- was on the move to another server, and no function of it did anything. What was due by then is due at that moment: the wait counts neither as
  -- lateness nor as credit.
  local function open(space, now_us, ago_us)
    local ago = ago_us and ago_us ~= '' and base.whole(ago_us)
    local ctx = context.open(space, now_us)
    if ago then ctx.resumed_at = max(0, ctx.now - ago) end
    return ctx
  end

  -- without_record: the reply to a daemon where no record is stored: somebody flushed Redis, and what was pushed since must not be
  -- judged by the built-in defaults. It stores its own record and calls again.
  local function without_record()
    return { -1, 0, 0, 0, '', 0, {}, 0 }
  end

  -- drip__drain: let out what is due.
  -- keys   <prefix>:schedule
  -- args   now_us, "1": do nothing where no record is stored, for how long the partition goes on that stood still, us ("": it did not)
  -- reply  { wait_us (0 = call again, -1 = nothing waits), dispatched, rejected, latest_us (the latest of this call),
  --          id of the record in force ('' = none is stored), spreading 0/1, notes { kind, subject, detail, count, ... } }
  -- cost   O(batch)
  function drain.drain(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'schedule')
    if not space then return refuse('BADARG', 'drain takes the schedule key') end
    local ctx = open(space, args[1], args[3])
    if args[2] == '1' and not ctx.id then return without_record() end
    begin(ctx)
    return finish(ctx)
  end

  -- filled_queues: of the first buckets among some queue keys that need a look, at most `most` of them: their names, where they
  -- are among the keys, how many jobs wait, and how many keys were looked at. Most reports are the echo of a
  -- dispatch: where no queue is there any more, one look is enough for all, and one that is as the dispatch left it needs
  -- nothing, for that has cut and scheduled it.
  local function filled_queues(ctx, redis_keys, most)
    local found, at, lens, head, m = {}, {}, {}, ctx.k.queues, ctx.memory
    if #redis_keys > 1 and call('EXISTS', unpack(redis_keys)) == 0 then return found, at, lens, #redis_keys end
    for i = 1, #redis_keys do
      if #found == most then return found, at, lens, i - 1 end
      local key = redis_keys[i]
      local name = sub(key, 1, #head) == head and sub(key, #head + 1)
      if name and names.is_bucket(name) then
        local len = bucket.length_of(ctx, key)
        if len and len > 0 and not memory.ask(m, name, len) then
          local n = #found + 1
          found[n], at[n], lens[n] = name, i, len
        end
      else
        note(ctx, 'bad-name', key)
      end
    end
    return found, at, lens, #redis_keys
  end

  -- look_at_one: cut what is over, and let out what came into a bucket that may go; schedule what must wait, and write nothing
  -- otherwise. A bucket that stood on the schedule keeps its turn there, for the longest due go first.
  local function look_at_one(ctx, work, i, queue, len)
    local s, name, place, due, now = work.s, work.names[i], work.places[i], work.dues[i], ctx.now
    local may_go = not ctx.only_looks and (place == nil or place == ctx.k.rest or place == ctx.k.paused) and work.quota > 0
    if work.is_plain and may_go and place ~= ctx.k.paused and (due or 0) <= now then
      local p = ctx.rec.plain or policy_of(ctx.rec, name)
      if p.parent and not p.refused then budget.arrives(ctx, p.parent, name) end
      local out, left_at = plain.turn(ctx, name, p, queue, len, place, now, ctx.now_text,
        min(work.quota, work.share))
      work.quota = work.quota - out
      if left_at then general(ctx, work, i, queue, len - out, due, left_at, out) end
      if out > 0 then return end
    end
    plain.pause(ctx)
    work.decides = true
    bucket.decide(ctx, s, name, queue, len, place, due, work.levels[i])
    work.decides, s.due = false, s.due or now
    local had_work = place ~= nil and place ~= ctx.k.rest
    if s.p.parent and not s.p.refused and not had_work then budget.arrives(ctx, s.p.parent, name) end
    if not had_work then room.came_anew(ctx, name, s.p) end
    if may_go and s.due <= now then
      local given = min(work.quota, work.share)
      -- A retry of one that was paused may have been announced; one that has ended brings every other bucket onto the schedule.
      local announced = place == ctx.k.paused and retries.has_ended(ctx, name)
      work.quota = work.quota - given + dispatch.turn(ctx, s, given, announced)
    else
      rejected.settle(ctx, s)
      s.retry_ready = s.len == 0 and retries.has_ended(ctx, name) -- one that is closed may be cut to nothing
      places.commit(ctx, s, bucket.place(ctx, s))
    end
  end

  -- look: look at the queues of `work`, from where it stands.
  local function look(ctx, work)
    local found = work.names
    while work.at < #found do
      if spent(ctx) then return end -- a call that has cut as much as one may stops before the next
      local i = work.at + 1
      work.at = i
      -- One that is named twice has been cut, or has let out a job, since its length was read.
      if not work.seen[found[i]] then
        work.seen[found[i]] = true
        look_at_one(ctx, work, i, work.keys[work.key_at[i]], work.lens[i])
      end
    end
  end

  -- look_at: look at some queues: as many as a batch, or half as many where others are due. Replies how many of them were looked
  -- at, those that needed none included, and the earliest due where nothing has changed on the schedule.
  local function look_at(ctx, redis_keys)
    local first_due, batch = places.first_due(ctx), ctx.limits.batch
    if first_due == huge and ctx.memory.settled_count > 0 then memory.forget(ctx.memory, ctx.now) end
    local quota = max(1, (first_due > ctx.now and batch or floor(batch / 2)) - ctx.turned)
    local found, at, lens, looked = filled_queues(ctx, redis_keys, quota)
    if #found == 0 then return looked, first_due end
    ctx.looked = #found
    record.expect(ctx.rec, found)
    budget.expect(ctx, found)
    brake.expect(ctx, found)
    local stands, dues = places.load(ctx, found)
    local work = {
      s = {}, names = found, keys = redis_keys, key_at = at, lens = lens, places = stands, dues = dues,
      levels = bucket.levels_of(ctx, found), announced = {}, seen = {}, at = 0, quota = quota,
      share = min(ctx.rec.quarter, max(1, floor(quota / #found))),
    }
    local scheduled = guarded(ctx, work, look)
    if work.at < #found then looked = at[work.at + 1] - 1 end
    return looked, not scheduled and first_due or nil
  end

  -- drip__wake: look at queues that changed, let out what came into buckets that may go, then drain.
  -- keys   <prefix>:queue:<bucket> ... (of one prefix, at most 1,000)
  -- args   now_us, "1" as drain, or "look": let out nothing, and only have what was pushed by now counted by what holds now; the
  --        third as drain
  -- reply  as drain; an eighth number says how many of the queues were looked at: the rest is for the next call.
  --        0 where the call was spent on what settings that ended had left behind
  -- cost   O(queues + batch)
  function drain.wake(redis_keys, args)
    local space = keys.split_queue(redis_keys[1] or '')
    if not space or #redis_keys > 1000 then return refuse('BADARG', 'wake takes 1 to 1000 queue keys') end
    local ctx = open(space, args[1], args[3])
    if (args[2] == '1' or args[2] == 'look') and not ctx.id then return without_record() end
    ctx.only_looks = args[2] == 'look'
    begin(ctx)
    local looked, first_due = look_at(ctx, redis_keys)
    local reply = ctx.only_looks and reply_of(ctx, 0) or finish(ctx, first_due)
    reply[8] = looked
    return reply
  end
end
