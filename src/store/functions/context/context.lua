-- needs: base, base.keys, base.names, context.memory, policy.record
-- A call: what it reads before it looks at a bucket, and what it replies besides when it is over.
--
-- The context `ctx` of a call:
--   k          the keys of its space (base/keys)
--   now, now_text   its time
--   resumed_at  when a partition that was interrupted resumed, 0 where it was not: a due from before that counts as
--               that time (dispatch/drain)
--   id, rec    the record in force; limits: rec.limits
--   magic      that of submitted jobs (queue/envelope), or false
--   old_rec    the record before a rollout, or before a setting of a glob ended
--   rollout    the name of that change, nil where no rollout has begun
--   held       names of the routes with held buckets, separated by spaces
--   memory     what is remembered of this space (context/memory)
--   bytes      of jobs read so far; entries: jobs dropped so far; `spent` bounds both
--   dispatched, rejected, latest_us   its figures
--   rooms      the rooms of the routes that were asked for (route/room)
--   head_of, head   a bucket whose next job was read already, and that job (dispatch/fast_path)
--   moves      states that were entered and are not written yet (state)
--   is_simple  no settings, no rollout, and no entry has a budget, a quota or slots
--   is_filled  all of the context is of this call
--   has_slow, has_windows, has_told, has_paid   whether any of these constraints is stored (limits/constraints)
--   has_uncounted   whether a limit of what is in flight is new (limits/slots)
--   constraints, slowed, changed_constraints   the constraints of buckets that were read, which buckets are slowed
--   down, and constraints to be written (limits/constraints)

local context = {}
do
  local clock, digits = base.clock, base.digits

  local STEP_BACK_US = 1000 -- a clock that went back further than this starts a sweep
  local BELIEVED_US = 250000 -- after so long without a drain, what is remembered of states is not believed

  -- By space, in two halves as memory has them (context/memory). A context is made once and filled anew by each call:
  -- making one costs more than most calls do.
  local contexts, before, context_count = {}, {}, 0

  local function make(space)
    if context_count >= 256 then contexts, before, context_count = {}, contexts, 0 end
    local ctx = before[space] or { space = space, k = keys.of(space), bucket = {} }
    contexts[space], context_count = ctx, context_count + 1
    return ctx
  end

  -- look_through: override the records by what operators have set. The views are made anew after a change of globs, or
  -- after a change by another server. After other changes only that name is forgotten (context/settings).
  local function look_through(ctx, m, version, now)
    local view = m.view
    if not view or view.version ~= version or view.base ~= ctx.rec then
      local globs = base.seen(pcall_redis('GET', ctx.k.globs))
      view = record.view(ctx.rec, ctx.k.settings, type(globs) == 'string' and globs or nil, nil)
      view.version, m.view, m.old_view = version, view, nil
    end
    record.look_at(view, now)
    ctx.rec = view
    if ctx.old_rec or view.ended_us > 0 then context.look_back(ctx, m, view) end
  end

  -- look_back: override the record before a rollout too.
  function context.look_back(ctx, m, view)
    local old_view, of = m.old_view, ctx.old_rec or view.base
    if not old_view or old_view.base ~= of or old_view.rollout ~= ctx.rollout then
      local globs = ctx.rollout and call('HGET', ctx.k.policy, 'prev_globs')
      old_view = record.view(of, ctx.k.settings, globs or call('GET', ctx.k.globs) or nil, view)
      old_view.rollout, m.old_view = ctx.rollout, old_view
      record.look_at(old_view, 0)
    end
    ctx.old_rec = old_view
  end

  -- take_old: the record before the rollout. `old_id` is the id of another record; or, where globs changed or one of
  -- their settings ended, the id of the same record, a space and the name of the change.
  local function take_old(ctx, id, old_id)
    ctx.rollout, ctx.old_rec = old_id, nil
    if not old_id then return end
    local of = match(old_id, '^%S+')
    ctx.old_rec = record.by_its_id(ctx.k.policy, of, of == id and 'record' or 'prev')
  end

  -- renew: globs changed, or one of their settings ended, within this call. Idle nodes take no part in that rollout,
  -- but the sweep also reads buckets whose jobs back off.
  function context.renew(ctx)
    ctx.memory.sweep = nil
    ctx.rec = ctx.rec.base or ctx.rec
    take_old(ctx, ctx.id, call('HGET', ctx.k.policy, 'prev_id'))
    look_through(ctx, ctx.memory, ctx.memory.view.version, ctx.now)
  end

  -- begin_tree: what a call needs to know of budgets, slots and constraints: nothing, as long as there are none.
  local function begin_tree(ctx, rec, stored)
    ctx.waits, ctx.waiting_at, ctx.left_lines, ctx.begun = false, false, false, false
    ctx.write_budgets, ctx.announced = false, false
    ctx.inflight, ctx.takes_slots, ctx.may_be_full =
      false, 'unknown', rec.has_slots or rec.version or ctx.old_rec or false
    ctx.has_budgets = rec.has_budgets or ctx.old_rec and ctx.old_rec.has_budgets or false
    ctx.has_slow = stored and find(stored, 's', 1, true) ~= nil or false
    ctx.has_paid = stored and find(stored, 'p', 1, true) ~= nil or false
    ctx.has_told = stored and find(stored, 't', 1, true) ~= nil or false
    ctx.has_windows = stored and find(stored, 'q', 1, true) ~= nil or false
    ctx.has_uncounted, ctx.uncounted = stored and find(stored, 'c', 1, true) ~= nil or false, false
    ctx.constraints, ctx.changed_constraints, ctx.slowed = false, false, false
  end

  -- look: the first half of `open`: what a push needs to know into a bucket that only its rate can stop. All other
  -- fields are those of an earlier call, until `fill`.
  -- reads   the policy key, the clock      writes  nothing      cost  2 calls, and one more where a record is new to
  --         this server
  local calls = 0

  function context.look(space, now_us)
    calls = calls + 1
    local ctx = contexts[space] or make(space)
    local head = call('HMGET', ctx.k.policy, 'id', 'prev_id', 'held', 'settings', 'brakes', 'mark', 'drainer')
    local id, now, m = head[1] or nil, clock(now_us), ctx.memory
    ctx.rec = record.by_its_id(ctx.k.policy, id, 'record')
    take_old(ctx, id, head[2])
    if not m or ctx.id ~= id then m = memory.of(space, id) end
    if head[4] then look_through(ctx, m, head[4], now) end
    if now < m.clock - STEP_BACK_US then m.sweep, m.rest_us, m.over_us = nil, 0, 0 end
    -- This server may have been a replica since its last drain, and another one may have moved nodes to `rest`: then
    -- the other one has drained since, or it is a while ago. Calls that only read come to a replica too. A drain in the
    -- future is from before the clock stepped back, and says nothing of how long ago it was.
    local was_drained = (not head[7] or head[7] == m.drainer)
      and m.drained_us <= now
      and now <= m.drained_us + BELIEVED_US
    if not was_drained then m.rest_us, m.over_us, m.era = 0, 0, m.era + 1 end
    if not was_drained or now < m.clock then memory.replaced(m) end
    memory.refresh(m, now)
    m.clock = now
    local rec = ctx.rec
    ctx.now, ctx.id, ctx.held, ctx.limits, ctx.memory = now, id, head[3] or '', rec.limits, m
    ctx.drainer = head[7]
    ctx.magic, ctx.stored_constraints = head[6], head[5] -- false: nothing was ever submitted; no constraint is stored
    ctx.is_simple, ctx.has_retries = not (rec.has_more or rec.version or ctx.old_rec or head[5]), nil
    ctx.is_filled = false
    return ctx
  end

  -- unknown: the refusal of a call in a space without a record. A client that adds a prefix to its keys, or a misspelt
  -- one, would put jobs where no daemon ever looks.
  function context.unknown(k)
    return base.refuse('BADBUCKET', 'no policies are stored for the prefix "' .. names.as_text(k.prefix, 200)
      .. '", so no daemon serves it: does your client add a key prefix? Where one serves it, they are back in a moment,'
      .. ' as after a FLUSHALL: try again')
  end

  -- has_no_record: whether a space has none; for a call that needs no context.
  function context.has_no_record(space)
    return not call('HGET', keys.of(space).policy, 'id')
  end

  -- fill: the second half of `open`. Where it was done already nothing is done.
  function context.fill(ctx)
    if ctx.is_filled then return end
    ctx.is_filled, ctx.calls, ctx.now_text = true, calls, digits(ctx.now)
    -- Absent values are `false`: a field that is nil would lose its place in the table, and the next call would need a
    -- new one.
    ctx.rooms, ctx.notes, ctx.noted, ctx.moves, ctx.policies_before = {}, false, false, false, false
    ctx.bytes, ctx.entries = 0, 0
    ctx.head_of, ctx.head = false, false
    ctx.marks, ctx.applied_of, ctx.swept_over, ctx.only_looks, ctx.resumed_at = false, false, false, false, 0
    local is_simple = ctx.is_simple
    local has_used = ctx.waits or ctx.inflight or ctx.write_budgets or ctx.constraints or ctx.changed_constraints
    if not is_simple or not ctx.has_no_tree or has_used then
      begin_tree(ctx, ctx.rec, ctx.stored_constraints)
    end
    ctx.has_no_tree = is_simple
    ctx.dispatched, ctx.rejected, ctx.latest_us, ctx.looked, ctx.has_allowances = 0, 0, 0, 0, nil
  end

  -- open: the context of a call.
  -- reads, writes, cost   as `look`
  function context.open(space, now_us)
    local ctx = context.look(space, now_us)
    context.fill(ctx)
    return ctx
  end

  -- server: the name of this server, another one after each start. Two servers may have the same time and have counted
  -- as far.
  -- cost   1 call, once
  local run_id

  function context.server()
    if not run_id then
      local reply = pcall_redis('INFO', 'server')
      run_id = type(reply) == 'string' and match(reply, 'run_id:(%x+)') or 'unknown'
    end
    return run_id
  end

  -- drains: this server drains now. The field `drainer` of the policy key names the server that drained last.
  -- writes  the policy key, where another one did      cost  1 call then
  function context.drains(ctx)
    local name = run_id or context.server()
    ctx.memory.drained_us, ctx.memory.drainer = ctx.now, name
    if ctx.id and ctx.drainer ~= name then
      call('HSET', ctx.k.policy, 'drainer', name)
      ctx.drainer = name
    end
  end

  -- spent: whether a call has rejected or read as much as one call may. The rest is left for the next call.
  function context.spent(ctx)
    return ctx.entries >= ctx.limits.batch or ctx.bytes >= MIB
  end

  -- note: note something that the daemon should log. Of each kind the reply has one example, and the number of times.
  --   'bad-name'    a queue with an invalid bucket name            'wrong-type'  a key that holds something else
  --   'refused'     a stream did not take an entry (detail: why)   'raised'      a bucket's turn raised an error
  --                 (detail: it)
  --   'vanished'    an entry was deleted while a worker held it    'newer'       a newer version stored it: it is left
  --                 alone
  --   'no-budget'   no job may leave a bucket, because its chain cannot be resolved (detail: why)
  --   'skipped'     an entry that its group never delivered was taken back
  --   'expires'     a key of dripd had a time to live, which was taken away (detail: how long)
  --   'emptied'     the queue of a bucket with work is gone
  --   'not-searched'  a list that others push into too may not be searched (detail: why)
  -- `ctx.noted` is the last one.
  function context.note(ctx, kind, subject, detail)
    if not ctx.notes then ctx.notes = {} end
    ctx.noted = { kind = kind, subject = subject, detail = detail or '' }
    local noted = ctx.notes[kind]
    if noted then
      noted.count = noted.count + 1
    else
      ctx.notes[kind] = { subject = subject, detail = detail or '', count = 1 }
    end
  end

  -- notes_of: the notes of a call as a reply: kind, subject, detail and count of each, as texts.
  function context.notes_of(ctx)
    local list = {}
    if ctx.rec.unusable then
      context.note(ctx, 'newer', ctx.k.settings)
      ctx.rec.unusable = nil
    end
    for kind, noted in pairs(ctx.notes or {}) do
      base.append(list, kind, noted.subject, noted.detail, digits(noted.count))
    end
    return list
  end

  -- count: a figure of <prefix>:stats grows by n. It is written within a second.
  function context.count(ctx, counter, n)
    local counts = ctx.memory.counts
    counts[counter] = (counts[counter] or 0) + n
  end

  -- flush_counts: write the figures of the last second.
  function context.flush_counts(ctx)
    local m = ctx.memory
    if ctx.dispatched > 0 then
      context.count(ctx, 'dispatched', ctx.dispatched)
    end
    if next(m.counts) == nil or ctx.now - m.flushed_us < 1000000 and ctx.now >= m.flushed_us then return end
    for counter, n in pairs(m.counts) do call('HINCRBY', ctx.k.stats, counter, n) end
    for k, n in pairs(m.lates) do call('HINCRBY', ctx.k.stats, 'late:' .. k, n) end
    m.counts, m.lates, m.flushed_us = {}, {}, ctx.now
  end

  -- wake: tell the daemons that something may happen earlier than they know. They hear of each write of this key, or
  -- see that its number grew where Redis reports nothing.
  function context.wake(k)
    call('INCR', k.wake)
  end
end
