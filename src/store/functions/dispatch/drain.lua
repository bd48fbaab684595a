-- needs: base, base.keys, base.names, context, context.memory, context.settings, control.change, control.lifetimes,
--   control.sweep, dispatch, dispatch.fast_path, dispatch.serve, limits.constraint_store, limits.constraints,
--   policy.chain, policy.record, queue.rejected, queue.retries, route, route.room, state, state.bucket, state.line,
--   state.waiting, tree.budget
-- The two calls of the pacer. `drain` lets out what is due and replies how long to wait for the rest. `wake` first
-- looks at queues that changed.

local drain = {}
do
  local refuse = base.refuse
  local note, spent, policy_of = context.note, context.spent, record.policy_of

  -- How often a route with held buckets is looked at: a worker that reads its stream wakes nobody.
  local HOLD_POLL_US = 20000
  local FEW_ROUTES = 8 -- so many are looked at in each call
  local MOST_ROUTES = 100 -- so many at most

  -- full_path: the turn of the i-th node of `work` on the full path. Where `out` jobs of it have left on the fast path,
  -- `left_at` is its due since then. Replies whether it is due again at once.
  local function full_path(ctx, work, i, queue, len, due, left_at, out)
    local s, given = work.s, min(work.allowed, work.share)
    if chain.budget_of(work.names[i]) then
      -- A budget gets more than the share of a bucket, because many buckets may wait below it. While others are due it
      -- gets a quarter at most.
      given = #work.names == 1 and work.allowed or min(work.allowed, ctx.rec.quarter)
      work.allowed = work.allowed - given + serve.round(ctx, work.names[i], given)
      return false
    end
    if left_at then due, given = left_at, min(work.allowed, work.share - out) end
    fast_path.pause(ctx)
    work.decides = true
    bucket.decide(ctx, s, work.names[i], queue, len, work.from or work.states[i], due, work.allowances[i])
    work.decides, s.due, s.left_state = false, s.due or ctx.now, work.left_state
    s.left_rank = work.ranks and work.ranks[i]
    if left_at then s.stored_due = nil end -- what is stored is older
    local rest, is_due = dispatch.turn(ctx, s, given, work.announced[i], work.event)
    work.allowed = work.allowed - given + rest
    return is_due
  end

  -- take_turns: take the turns of the due nodes of `work`, from `work.at` on.
  local function take_turns(ctx, work)
    local names, due, queues = work.names, work.due, ctx.k.queues
    while work.at < #names do
      local left_at, out
      if work.is_fast and not spent(ctx) then
        left_at, out = fast_path.turns(ctx, work)
        fast_path.pause(ctx)
        if work.at == #names and not left_at then return end
      end
      if not left_at then
        if work.allowed <= 0 or spent(ctx) then
          work.more = true
          return
        end
        work.at = work.at + 1
      end
      local i = work.at
      local queue = queues .. names[i]
      local len = not chain.budget_of(names[i]) and bucket.length_of(ctx, queue) or 0
      if full_path(ctx, work, i, queue, len, due[2 * i] + 0, left_at, out) then work.more = true end
    end
  end

  -- guarded: run the turns. Where a turn raises (a key has the wrong type), only its bucket is parked: the dues of jobs
  -- that have left by then must be stored, and the other buckets are served. Replies whether the schedule was written.
  local function guarded(ctx, work, take)
    work.is_fast = fast_path.fits(ctx)
    ctx.is_fast = work.is_fast
    if work.is_fast then fast_path.open(ctx) end
    repeat
      local ok, why = pcall(take, ctx, work)
      if not ok then
        -- One of our keys has the wrong type.
        fast_path.pause(ctx)
        if work.decides then -- no bucket can be decided without this key: what has left by now is written all the same
          if work.is_fast then fast_path.close(ctx) end
          pcall(state.flush, ctx)
          error(type(why) == 'table' and why or { err = why })
        end
        local s, name = work.s, work.names[work.at]
        note(ctx, 'raised', ctx.k.queues .. name, base.message_of(why))
        work.allowed = work.allowed - 1
        if chain.budget_of(name) then
          pcall(serve.park, ctx, name)
        else
          local p, is_charged = policy_of(ctx.rec, name), s.bucket == name -- on the full path all is, as it leaves
          s.bucket, s.p, s.due, s.stored_due = name, p, is_charged and s.due or ctx.now, nil
          s.state, s.left_state = work.from or work.states[work.at], work.left_state
          bucket.park(ctx, s, work.event, not is_charged and p.interval_us or nil)
        end
      end
    until ok
    if work.is_fast then fast_path.close(ctx) end
    return state.flush(ctx)
  end

  -- drain_due: take the turns of the nodes that are due, earliest due first. A call serves one batch of jobs or nodes,
  -- in equal shares; one node gets no more than a quarter while others are due. Buckets that a wake looked at count
  -- too. Replies whether more is due, and where nothing was due, when the first will be. `first` is the earliest due,
  -- where it is known.
  local function drain_due(ctx, first)
    local batch, due = max(1, ctx.limits.batch - ctx.looked - ctx.turned), nil
    due, first = state.due(ctx, batch, first)
    if not due then return false, first end
    local names = {}
    for i = 1, #due, 2 do names[(i + 1) / 2] = due[i] end
    record.expect(ctx.rec, names)
    budget.expect(ctx, names)
    constraints.expect(ctx, names)
    local share = #names == 1 and batch or min(ctx.rec.quarter, max(1, floor(batch / #names)))
    local work = {
      s = {}, names = names, due = due, from = ctx.k.schedule, allowances = bucket.allowances_of(ctx, names),
      announced = retries.announced(ctx, names), event = 'turn', at = 0, allowed = batch, share = share,
      more = #names == batch,
    }
    ctx.begun = {}
    guarded(ctx, work, take_turns)
    local begun = ctx.begun
    ctx.begun = false
    if work.more or not begun[1] or work.allowed <= 0 then return work.more end
    -- Budgets got work, and are due at once.
    work.names, work.at, work.announced, work.allowances, work.due = begun, 0, {}, {}, {}
    for i = 1, #begun do work.due[2 * i] = ctx.now_text end
    guarded(ctx, work, take_turns)
    return work.more
  end

  -- bucket_turns: take the turns of the first buckets in the line of a route, one job each: at most `most`, and as long
  -- as none of them could come back before the next. Replies how many turns there were.
  local function bucket_turns(ctx, name, key, one, most, passed)
    local names, due, ranks, front, n = {}, {}, {}, {}, 0
    local rank_before = one.rank + 1
    while one and n < most and one.rank < rank_before and not chain.budget_of(one.id) do
      n = n + 1
      -- One that has moved to another route goes on there at its rate.
      local at = policy_of(ctx.rec, one.id).route == name and one.due or max(one.due, ctx.now)
      names[n], due[2 * n], ranks[n], front[n] = one.id, base.digits(at), one.rank, one
      waiting.leave(ctx, key, one.id, one.due)
      one = waiting.first(ctx, key, most, passed)
    end
    local work = {
      s = {}, names = names, due = due, ranks = ranks, from = false, states = {},
      allowances = bucket.allowances_of(ctx, names), announced = retries.announced(ctx, names),
      event = 'turn', left_state = 'held', at = 0, allowed = n, share = 1, more = false,
    }
    record.expect(ctx.rec, names)
    constraints.expect(ctx, names)
    guarded(ctx, work, take_turns)
    for i = work.at + 1, n do -- the call has read as much as one may: they keep their turns
      line.join(ctx, name, names[i], front[i].due, 1, ranks[i])
    end
    return work.at
  end

  -- budget_turn: the turn of a budget in the line of a route. Replies as `serve.at_route`.
  local function budget_turn(ctx, name, one, most)
    local used
    guarded(ctx, { s = {}, names = { one.id }, at = 1, allowed = most }, function(_, work)
      if work.is_done then return end -- it raised an error
      work.is_done = true
      used = 1
      used = serve.at_route(ctx, name, one, most)
    end)
    return used
  end

  -- turns_at: let out what waits in the line of a route, as many jobs as it takes and at most `share`. It passes over
  -- what is not due. While there is more that is due the route takes no other jobs; else nothing stands in its line.
  local function turns_at(ctx, name, share)
    local key, passed, left = waiting.route_key(ctx, name), 0, share
    line.begin(ctx, name)
    local r, one = room.for_held(ctx, name), waiting.first(ctx, key, share)
    ctx.at_route = name
    while one and r.left > 0 and left > 0 and not spent(ctx) do
      local used
      if chain.budget_of(one.id) then
        used = budget_turn(ctx, name, one, left)
      else
        used = bucket_turns(ctx, name, key, one, min(left, r.left), passed)
      end
      if used then left, ctx.turned = left - used, ctx.turned + used else passed = passed + 1 end
      one = waiting.first(ctx, key, share, passed)
    end
    ctx.at_route = false
    if r.left > 0 and not one then
      for _, it in ipairs(waiting.front(ctx, key, passed)) do serve.leave_route(ctx, name, it) end
    end
    state.flush(ctx)
    if waiting.is_empty(ctx, key) then return route.free(ctx, name) end
    if r.left > 0 or r.doubled and left < share then ctx.more_turns = true end
    room.close(ctx, r)
  end

  -- turns_of_held: give turns to what waits in the line of any route: a round of looks at the routes, which takes
  -- several calls where they are many. Then one whose workers take nothing is looked at every 20 ms, however often this
  -- is called.
  local function turns_of_held(ctx)
    local names, places = route.held(ctx)
    local n, m, looked, share = #names, ctx.memory, 0, max(1, floor(ctx.limits.batch / #names))
    for at = m.held_next and places[m.held_next] or 1, n do
      if n <= FEW_ROUTES or not room.is_silent(ctx, names[at], HOLD_POLL_US) then
        if looked == MOST_ROUTES then
          m.held_next, ctx.more_turns = names[at], true
          return
        end
        looked = looked + 1
        turns_at(ctx, names[at], share)
      end
    end
    m.held_next = nil
  end

  -- begin: what comes before the turns of due nodes: settings that ended, retries, and the turns of held buckets.
  local function begin(ctx)
    context.drains(ctx)
    ctx.turned, ctx.more_turns, ctx.at_route = 0, false, false
    if settings.first_end(ctx) <= ctx.now then change.end_over(ctx) end
    ctx.has_allowances, ctx.has_retries, ctx.has_ended = false, false, false
    if call('EXISTS', ctx.k.level, ctx.k.retries) > 0 then
      ctx.has_allowances, ctx.has_retries = call('EXISTS', ctx.k.level) == 1, call('EXISTS', ctx.k.retries) == 1
      if ctx.has_retries then
        retries.announce(ctx)
        ctx.has_ended = retries.any_has_ended(ctx)
      end
    end
    if ctx.only_looks then return end
    if (ctx.has_budgets or ctx.held ~= '') and state.adopt(ctx) then ctx.more_turns = true end
    if ctx.held ~= '' then turns_of_held(ctx) end
  end

  -- wait_us: how long until something is due: 0 = now, -1 = nothing waits. Cooling buckets wait for nothing.
  local function wait_us(ctx, more, first_due)
    if more then return 0 end
    local at = min(first_due or base.first_score(ctx.k.schedule), retries.first_end(ctx), settings.first_end(ctx))
    if ctx.held ~= '' then at = min(at, ctx.now + HOLD_POLL_US) end
    if next(ctx.memory.counts) then at = min(at, max(ctx.memory.flushed_us + 1000000, ctx.now)) end
    if at == huge then return -1 end
    return max(0, at - ctx.now)
  end

  local function reply_of(ctx, wait)
    return {
      wait,
      ctx.dispatched,
      ctx.rejected,
      ctx.latest_us,
      ctx.id or '',
      ctx.old_rec and 1 or 0,
      context.notes_of(ctx),
    }
  end

  -- finish: the turns of what is due, the sweep, and the reply.
  local function finish(ctx, first_due)
    local more
    more, first_due = drain_due(ctx, first_due)
    local more_cooled, idle = state.forget_cooled(ctx)
    if more_cooled then more = true end
    retries.forget_idle(ctx, idle)
    if constraint_store.drop_expired(ctx) then more = true end
    local sweeps, moved = sweep.step(ctx, more)
    if sweeps or ctx.more_turns then more = true end
    if moved then first_due = nil end
    room.count(ctx)
    context.flush_counts(ctx)
    return reply_of(ctx, wait_us(ctx, more, first_due))
  end

  -- open: the context of a call. `ago_us` is how long ago the partition resumed, '' or nil where it was not
  -- interrupted: while its slot moved to another server, no function ran in it. A due from before that counts as that
  -- moment: the wait is neither lateness nor credit.
  local function open(space, now_us, ago_us)
    local ago = ago_us and ago_us ~= '' and base.integer(ago_us)
    local ctx = context.open(space, now_us)
    if ago then ctx.resumed_at = max(0, ctx.now - ago) end
    return ctx
  end

  -- without_record: the reply to a daemon where no record is stored: somebody flushed Redis, and what was pushed since
  -- must not follow the built-in defaults. The daemon stores its own record and calls again.
  local function without_record()
    return { -1, 0, 0, 0, '', 0, {}, 0 }
  end

  -- drip__drain: let out what is due.
  -- keys   <prefix>:schedule
  -- args   now_us, "1": do nothing where no record is stored, how long ago the partition resumed after an interruption,
  --        us ("": there was none)
  -- reply  { wait_us (0 = call again, -1 = nothing waits), dispatched, rejected, latest_us (the latest of this call),
  --          id of the record in force ('' = none is stored), in a rollout 0/1,
  --          notes { kind, subject, detail, count, ... } }
  -- cost   O(batch)
  function drain.drain(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'schedule')
    if not space then return refuse('BADARG', 'drain takes the schedule key') end
    local ctx = open(space, args[1], args[3])
    if args[2] == '1' and not ctx.id then return without_record() end
    begin(ctx)
    return finish(ctx)
  end

  -- filled_queues: find the queues among some keys that need a look, at most `most`. Replies their names, their
  -- positions among the keys, their lengths, and how many keys were looked at. Most reports are the echo of a dispatch.
  -- Where none of the queues exists any more, one call is enough for all. A queue with the length that the dispatch
  -- left needs no look: the dispatch has cut and scheduled it.
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

  -- look_at_one: cut what is above the allowance, and let out jobs that came into a bucket that may dispatch. A bucket
  -- that must wait is scheduled. A bucket that was on the schedule keeps its turn there, because the earliest due goes
  -- first.
  local function look_at_one(ctx, work, i, queue, len)
    local s, name, from, due, now = work.s, work.names[i], work.states[i], work.dues[i], ctx.now
    local may_dispatch = not ctx.only_looks
      and (from == nil or from == ctx.k.rest or from == ctx.k.paused)
      and work.allowed > 0
    if work.is_fast and may_dispatch and from ~= ctx.k.paused and (due or 0) <= now then
      local p = ctx.rec.plain or policy_of(ctx.rec, name)
      if p.parent and not p.refused then budget.drop_stale_tag(ctx, p.parent, name) end
      local out, left_at = fast_path.turn(ctx, name, p, queue, len, from, now, ctx.now_text,
        min(work.allowed, work.share))
      work.allowed = work.allowed - out
      if left_at then full_path(ctx, work, i, queue, len - out, due, left_at, out) end
      if out > 0 then return end
    end
    fast_path.pause(ctx)
    work.decides = true
    bucket.decide(ctx, s, name, queue, len, from, due, work.allowances[i])
    work.decides, s.due = false, s.due or now
    local had_work = from ~= nil and from ~= ctx.k.rest
    if s.p.parent and not s.p.refused and not had_work then budget.drop_stale_tag(ctx, s.p.parent, name) end
    if may_dispatch and s.due <= now then
      local given = min(work.allowed, work.share)
      -- A retry of a paused bucket may have been announced. In all other states, a back-off that has ended puts the
      -- bucket on the schedule.
      local announced = from == ctx.k.paused and retries.has_ended(ctx, name)
      work.allowed = work.allowed - given + dispatch.turn(ctx, s, given, announced, 'arrive')
    else
      rejected.trim_to_capacity(ctx, s)
      s.retry_ready = s.len == 0 and retries.has_ended(ctx, name) -- a closed one may be cut to nothing
      state.enter(ctx, s, state.decide(ctx, s), 'arrive')
    end
  end

  -- look: look at the queues of `work`, from `work.at` on.
  local function look(ctx, work)
    local found = work.names
    while work.at < #found do
      if spent(ctx) then return end -- a call that has cut as much as one may stops before the next
      local i = work.at + 1
      work.at = i
      -- A queue that is named twice has been cut, or has let out a job, since its length was read.
      if not work.seen[found[i]] then
        work.seen[found[i]] = true
        look_at_one(ctx, work, i, work.keys[work.key_at[i]], work.lens[i])
      end
    end
  end

  -- look_at: look at some queues: a batch, or half a batch where others are due. Replies how many keys were looked at,
  -- with those that needed none, and the earliest due where the schedule has not changed.
  local function look_at(ctx, redis_keys)
    local first_due, batch = base.first_score(ctx.k.schedule), ctx.limits.batch
    if first_due == huge and ctx.memory.settled_count > 0 then memory.forget(ctx.memory, ctx.now) end
    local allowed = max(1, (first_due > ctx.now and batch or floor(batch / 2)) - ctx.turned)
    local found, at, lens, looked = filled_queues(ctx, redis_keys, allowed)
    if #found == 0 then return looked, first_due end
    ctx.looked = #found
    record.expect(ctx.rec, found)
    budget.expect(ctx, found)
    constraints.expect(ctx, found)
    local states, dues = state.load(ctx, found)
    local work = {
      s = {}, event = 'arrive', names = found, keys = redis_keys, key_at = at, lens = lens, states = states,
      dues = dues,
      allowances = bucket.allowances_of(ctx, found), announced = {}, seen = {}, at = 0, allowed = allowed,
      share = min(ctx.rec.quarter, max(1, floor(allowed / #found))),
    }
    local scheduled = guarded(ctx, work, look)
    if work.at < #found then looked = at[work.at + 1] - 1 end
    return looked, not scheduled and first_due or nil
  end

  -- drip__wake: look at queues that changed, let out what came into buckets that may dispatch, then drain.
  -- keys   <prefix>:queue:<bucket> ... (of one prefix, at most 1,000)
  -- args   now_us, "1" as drain, or "look": let out nothing, only count what was pushed by now under the present
  --        policy; the third as drain
  -- reply  as drain; an eighth number is how many of the queues were looked at: the others are for the next call. 0
  --        where the call was spent on what ended settings left behind
  -- cost   O(queues + batch)
  function drain.wake(redis_keys, args)
    local space = keys.split_queue(redis_keys[1] or '')
    if not space or #redis_keys > 1000 then return refuse('BADARG', 'wake takes 1 to 1000 queue keys') end
    local ctx = open(space, args[1], args[3])
    if (args[2] == '1' or args[2] == 'look') and not ctx.id then return without_record() end
    ctx.only_looks = args[2] == 'look'
    begin(ctx)
    lifetimes.look_at_reported(ctx, redis_keys)
    local looked, first_due = look_at(ctx, redis_keys)
    local reply = ctx.only_looks and reply_of(ctx, 0) or finish(ctx, first_due)
    reply[8] = looked
    return reply
  end
end
