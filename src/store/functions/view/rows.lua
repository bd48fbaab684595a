-- needs: base, base.keys, base.names, context, context.trace, limits.constraints, limits.slots, pace.quota, pace.rate,
--   pace.told, policy.chain, policy.record, queue.delayed, queue.rejecting, state, state.bucket, state.waiting,
--   tree.budget
-- Rows: the present figures of buckets and budgets, a row each, for `dripd top`. A call replies only those that are
-- named, so its cost does not depend on how many there are. Nothing is written.
--
-- A row of a bucket: its name, its state (due, share, full, held, paused, refused; idle: it has no work), its route,
-- depth, capacity, count and period_us of its rate, us until its next job is due, ms until it is empty, us that its
-- next job is late, and how many of its jobs were rejected lately. The walk (view/walk) replies the same rows.
--
-- The reason why a node waits, as a word that the program puts into a sentence, and its detail:
--   wrong-type   what its key holds             refused      why                     paused   the name or glob
--   slots        '<taken> of <all>'             slow, quota  '' (until it is due)    slowed   what is left of its rate,
--                in percent
--   told         what the other side says is left
--   rate         ''                             share        the budget              held     the route
--   backing-off  '' (only failed jobs wait)     due          ''                      empty    ''
--   delayed      '' (only delayed jobs wait, the first one before any failed job)
--   paused-above the budget above it that is paused

local rows = {}
do
  local refuse, is_error, digits, bare = base.refuse, base.is_error, base.digits, chain.bare

  local MOST = 64 -- rows of a call: about half a millisecond
  local NAMED = 64 -- budgets that the configuration names

  -- add: add a row.
  function rows.add(list, ctx, p, name, waits, due, len, empty, late, rejected_n)
    base.append(list, name, waits, p.route or '', len, p.capacity or 0, p.count or 0, p.period_us or 0,
      max(0, due - ctx.now), empty, late, rejected_n)
  end

  -- empty_ms: how long until `len` jobs of a bucket with this constraint, if any, have left, the first one at its due:
  -- at what a slow-down leaves of its rate.
  function rows.empty_ms(p, constraint, due, now, len)
    local eta = rate.eta_ms(p, due, now, len)
    if not constraint or constraints.factor(constraint, p) >= 1 then return eta end
    return max(eta, ceil((due - now + (len - 1) * constraints.interval_us(constraint, p)) / 1000))
  end

  -- waits_at: the state of a bucket, as a word of a row.
  function rows.waits_at(ctx, from)
    local word = state.word(ctx, from)
    return (word == 'rest' or word == 'none') and 'idle' or word
  end

  -- own_time: why a node waits whose due is in the future.
  local function own_time(ctx, p, constraint)
    if constraint then
      local till = constraints.ends_at(constraint, p, ctx.now)
      if till > ctx.now then
        if constraint.slowdown and constraint.slowdown.till == till then return 'slow', '' end
        local t = constraint.told
        if not t or told.resumes_at(t, p, ctx.now, 1) < till then return 'quota', '' end
        return 'told', told.in_words(t, p, ctx.now)
      end
      local factor = constraints.factor(constraint, p)
      if factor < 1 then return 'slowed', digits(floor(factor * 100 + 0.5)) end
    end
    return 'rate', ''
  end

  -- stopped: what stops a node other than time, or nil.
  local function stopped(ctx, id, p)
    if p.refused then return 'refused', p.refused end
    if p.paused then return 'paused', bare(p.paused) end
    if not p.concurrency or not slots.is_full(ctx, id, p) then return nil end
    local taken = slots.count(ctx, id)
    -- An `ordered` bucket waits for its failed job.
    if p.ordered and taken < p.concurrency and slots.is_counted(ctx, id, p) then return 'backing-off', '' end
    return 'slots', digits(taken) .. ' of ' .. digits(p.concurrency)
  end

  -- why: why a bucket waits: the first of the reasons that `explain` replies.
  local function why(ctx, s, has_work)
    local word, about = stopped(ctx, s.bucket, s.p)
    if word == 'refused' or word == 'paused' then return word, about end
    if not has_work then return 'empty', '' end
    if word then return word, about end
    if s.due and s.due > ctx.now then return own_time(ctx, s.p, s.constraint) end
    local of = waiting.budget(ctx, s.state)
    for _, b in ipairs(of and budget.ancestors(ctx, of) or {}) do -- in a rollout its policy may have another parent
      if b.p and b.p.paused then return 'paused-above', bare(b.id) end
    end
    if of then return 'share', bare(of) end
    if state.is_held(ctx, s.state) then return 'held', s.p.route end
    return 'due', ''
  end

  -- stands_now: add the row of a bucket, and to `more` why it waits, the detail of that, and what closes it.
  local function snapshot(ctx, list, more, name, from, due, allowance, pair)
    local queue, queue_type = ctx.k.queues .. name, nil
    local len = pcall_redis('LLEN', queue)
    if is_error(len) then len, queue_type = 0, call('TYPE', queue).ok end
    local s = bucket.decide(ctx, {}, name, queue, len, from, due, allowance)
    local next_retry = s.len == 0 and tonumber(call('ZSCORE', ctx.k.retries, name) or nil) or nil
    local at = max(s.due or ctx.now, ctx.now)
    local word, about = why(ctx, s, s.len > 0 or next_retry ~= nil)
    if queue_type then word, about = 'wrong-type', queue_type end
    if next_retry and next_retry < huge and next_retry > at and (word == 'rate' or word == 'due') then
      word, about, at = next_retry < delayed.first_time(ctx, name) and 'backing-off' or 'delayed', '', next_retry
    end
    local waits = rows.waits_at(ctx, from)
    rows.add(list, ctx, s.p, name, waits, at, s.len,
      s.len > 0 and rows.empty_ms(s.p, s.constraint, at, ctx.now, s.len) or 0,
      waits == 'due' and s.len > 0 and max(0, ctx.now - (s.due or ctx.now)) or 0,
      pair and rejecting.of(pair, name) or 0)
    base.append(more, word, about, s.p.closed and bare(s.p.closed) or '')
  end

  -- drip__rows: the rows of some buckets. From now on the jobs that leave them are counted, as long as somebody asks.
  -- keys   <prefix>:policy
  -- args   now_us, bucket ... (at most 64)
  -- reply  { now_us (a text), rows, { why, its detail, the name or glob that closes it ('': it is open), ... }, { jobs
  --        that have left it since they are counted, ... } }
  -- errors BADARG
  -- cost   O(buckets)
  function rows.buckets(redis_keys, args)
    local space, list = keys.space_before(redis_keys[1], 'policy'), {}
    for i = 2, #args do
      if not names.is_bucket(args[i]) then space = nil end
      list[i - 1] = args[i]
    end
    if not space or #list > MOST then
      return refuse('BADARG', 'rows takes the policy key and up to 64 names of buckets')
    end
    local ctx, found, more = context.open(space, args[1]), {}, {}
    if list[1] then
      local states, dues = state.load(ctx, list)
      local allowances, pair = call('HMGET', ctx.k.level, unpack(list)), rejecting.now_in(ctx)
      if ctx.rec.version then record.expect(ctx.rec, list, true) end
      constraints.expect(ctx, list)
      bucket.expect(ctx, list)
      for i, name in ipairs(list) do
        snapshot(ctx, found, more, name, states[i], dues[i], tonumber(allowances[i] or nil), pair)
      end
    end
    return { ctx.now_text, found, more, trace.ask(ctx.memory, list, ctx.now) }
  end

  -- named: add the budgets that the configuration names without a glob, where they are not in the list.
  local function named(ctx, list)
    local seen = {}
    for _, id in ipairs(list) do seen[id] = true end
    for i, entry in ipairs((ctx.rec.base or ctx.rec).budgets or {}) do -- a view has none of its own
      local id = i <= NAMED and not find(entry.match, '[*?%[\\]') and chain.id_of(entry.match)
      if id and not seen[id] and #list < MOST then seen[id], list[#list + 1] = true, id end
    end
  end

  -- budget_now: the row of a budget.
  local function budget_now(ctx, list, b)
    local p, has_work = b.p or {}, b.state and b.state ~= ctx.k.rest
    local waits = has_work and budget.waiting(ctx, b) or 0
    local due = budget.known_due(ctx, b) or 0
    local word, about
    if b.p then word, about = stopped(ctx, b.id, p) else word, about = 'refused', 'no [[budget]] matches it' end
    if not word and not has_work then word, about = 'empty', '' end
    if not word and due > ctx.now then word, about = own_time(ctx, p, b.constraint) end
    local of = waiting.budget(ctx, b.state)
    if not word and of then word, about = 'share', bare(of) end
    if not word and state.is_held(ctx, b.state) then word, about = 'held', next(b.routes) or '' end
    local used, most = 0, 0
    for _, q in ipairs(p.quotas and quota.used(b.constraint and b.constraint.windows, p.quotas, ctx.now) or {}) do
      if most == 0 or q.used * most > used * q.count then used, most = q.used, q.count end
    end
    local taken = p.concurrency and slots.count(ctx, b.id) or 0
    base.append(list, bare(b.id), waits, p.count or 0, p.period_us or 0, max(0, due - ctx.now), taken,
      p.concurrency or 0, used, most, word or 'due', about or '', p.parent and bare(p.parent) or '', p.weight or 1,
      constraints.credit(b.constraint, p, ctx.now))
  end

  -- drip__budget_rows: the rows of some budgets, and of those that the configuration names without a glob; counted as
  -- by drip__rows.
  -- keys   <prefix>:policy
  -- args   now_us, budget ... (at most 64)
  -- reply  { now_us (a text), { budget, how many wait for a share of it, count and period_us of its rate (0: it has
  --        none), us until its next job is due, slots taken, slots (0: no bound), used of the fullest quota, that quota
  --        (0: it has none), why, its detail, the budget above it ('': none), its weight there, its credit of
  --        corrected costs in us (negative: debt), ... }, { jobs that have passed since they are counted, ... } }
  -- errors BADARG
  -- cost   O(budgets)
  function rows.budgets(redis_keys, args)
    local space, ids, found = keys.space_before(redis_keys[1], 'policy'), {}, {}
    for i = 2, #args do
      if not names.is_bucket(args[i]) then space = nil end
      ids[i - 1] = chain.id_of(args[i])
    end
    if not space or #ids > MOST then
      return refuse('BADARG', 'budget_rows takes the policy key and up to 64 names of budgets')
    end
    local ctx = context.open(space, args[1])
    if not ctx.rec.has_budgets then return { ctx.now_text, {}, {} } end
    named(ctx, ids)
    budget.expect(ctx, ids)
    for _, id in ipairs(ids) do budget_now(ctx, found, budget.get(ctx, id)) end
    return { ctx.now_text, found, trace.ask(ctx.memory, ids, ctx.now) }
  end
end
