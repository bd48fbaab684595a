-- needs: base, base.keys, base.names, context, context.memory, context.settings, control.change, control.daemons,
--   limits.constraint_store, limits.constraints, limits.slots, pace.paid, pace.quota, pace.rate, pace.told,
--   policy.chain, policy.record, policy.setting, queue.envelope, queue.gate, queue.ids, queue.push, route, state,
--   state.bucket, state.waiting, tree.budget, tree.turn_at, view.routes
-- Explain: why a bucket waits, and what a change or a push would do to it. Both only read. Both compute with the steps
-- that do the thing itself: `bucket.decide`, the push, the rates. The program (src/explain) puts the facts into words.

local explain = {}
do
  local refuse, is_error, integer, bare = base.refuse, base.is_error, base.integer, chain.bare

  local CONSUMERS_MOST = 100 -- workers that are listed
  local CONSUMERS_READ = 10000 -- and read, to find those who hold most
  local COSTS_READ = 1000 -- jobs of a queue whose cost is read for a forecast, at most, and 1 MiB of them
  local FAR = 2 ^ 53 -- what lies further ahead is as good as never

  -- look: the context of a call and what is stored of a bucket, or nil and an error.
  --   queue, name, len    its queue; wrong: the type of a key there that is no list
  --   state, due, allowance   as `bucket.decide` takes them
  local function look(redis_keys, now_us)
    local space, name, err = keys.bucket_of(redis_keys)
    if err then return nil, nil, err end
    local queue = redis_keys[1]
    local ctx, b = context.open(space, now_us), { queue = queue, name = name }
    local len = pcall_redis('LLEN', queue)
    if is_error(len) then b.wrong, len = call('TYPE', queue).ok, 0 end
    local states, dues = state.load(ctx, { name })
    b.len, b.state, b.due = len, states[1], dues[1]
    b.allowance = tonumber(call('HGET', ctx.k.level, name) or nil)
    return ctx, b
  end

  local function decide(ctx, b, p)
    return bucket.decide(ctx, {}, b.name, b.queue, b.len, b.state, b.due, b.allowance, p)
  end

  -- alive: how many daemons are alive, as far as is known.
  local function alive(ctx) return base.number(daemons.count(ctx.k.daemons, ctx.now)) end

  -- ms: a time between two moments, in whole milliseconds, never below 0.
  local function ms(us) return max(0, floor(us / 1000)) end

  -- set_aside: of the failed jobs of a bucket, or of its delayed ones, how many wait, how many could leave, and when
  -- the first of them can; or the type of their key where that is wrong.
  local function set_aside(ctx, key)
    local n = pcall_redis('ZCARD', key)
    if is_error(n) then return { waiting = 0, ended = 0, wrong = call('TYPE', key).ok, key = key } end
    if n == 0 then return { waiting = 0, ended = 0 } end
    return { waiting = n, ended = call('ZCOUNT', key, '-inf', ctx.now_text), first = base.first_score(key) }
  end

  -- aside_of: both of a bucket.
  local function aside_of(ctx, name)
    return { retry = set_aside(ctx, ctx.k.retry .. name), later = set_aside(ctx, ctx.k.delayed .. name) }
  end

  -- in_facts: the facts about jobs that wait for a time.
  local function in_facts(ctx, r)
    return { waiting = r.waiting, ended = r.ended, next_us = r.first and max(0, r.first - ctx.now) }
  end

  -- paid_of: of a node whose due is in the future, the cost of its last job, where that was more than one slot, and
  -- whether it waits for `job_rate`; nil where no payment is known.
  local function paid_of(ctx, p, due, constraint)
    local d = constraint and constraint.paid
    if not d or not due or due <= ctx.now then return nil end
    local by_jobs = p.job ~= nil and d.job_due > d.unit_due
    local cost = not by_jobs and not p.ignores_cost and d.cost > 1 and d.cost or nil
    return { by_jobs = by_jobs, cost = cost, needs = d.needs > 1 and d.needs or nil }
  end

  -- credit_of: the credit of a node, in us, negative in debt, and what that makes of a price; nil where it has none.
  local function credit_of(ctx, p, constraint)
    local credit = constraints.credit(constraint, p, ctx.now)
    return credit ~= 0 and { us = credit, price_percent = paid.price_percent(credit) } or nil
  end

  -- told_of: what the other side says about the limit of a node, and until when that keeps its next job back; nil where
  -- nothing is told.
  local function told_of(ctx, p, constraint)
    local t = constraint and constraint.told
    local l = t and told.applies(t, p, ctx.now)
    if not l then return nil end
    return {
      left = max(0, l.left), limit = l.limit > 0 and l.limit or nil, unit = l.unit, reset_us = l.till - ctx.now,
      is_reckoned = l.is_told == 0, waits_us = max(0, told.resumes_at(t, p, ctx.now, 1) - ctx.now),
    }
  end

  -- settings_of: what operators have set of a policy: key, value, which name or glob, since and until when, by whom,
  -- why. A slow-down and a told limit in force are listed like timed settings.
  local function settings_of(ctx, id, p, constraint)
    local list = {}
    for key, it in pairs(constraint_store.as_settings(ctx, constraint, p)) do
      it.key, it.match = key, bare(id)
      list[#list + 1] = it
    end
    for key, won in pairs(p.set or {}) do
      local it = won.setting
      list[#list + 1] = { key = key, text = it.text, match = bare(won.match), since = it.since, till = it.till,
        by = it.by, user = it.user,
        reason = it.reason }
    end
    table.sort(list, function(a, b) return a.key < b.key end)
    return list[1] and list
  end

  -- level_of: one level of the chain, with what applies there and where that is from: the place of its entry in the
  -- record, and settings. `id` is that of the node, `p` its policy, `from` and `due` are as stored, `constraint` is its
  -- constraint.
  -- (The JSON of Redis writes an empty list as a table, so none is written.)
  local function level_of(ctx, id, p, from, due, constraint)
    local budget_name = chain.budget_of(id)
    local entries = budget_name and ctx.rec.budgets or ctx.rec.buckets
    local entry = p.entry and entries and entries[p.entry]
    -- A job that is forwarded has no lease and is tried once.
    local rated, tried = p.ignores_cost and {} or p, p.forward and {} or p
    local taken = p.concurrency and slots.count(ctx, id)
    return {
      kind = budget_name and 'budget' or 'bucket', name = budget_name or id, place = state.word(ctx, from),
      due_us = due and max(0, due - ctx.now), late_ms = due and ms(ctx.now - due),
      entry = p.entry, match = entry and entry.match, paused = p.paused and bare(p.paused), closed = p.closed,
      set = settings_of(ctx, id, p, constraint),
      refused = p.refused, within = p.parent and chain.budget_of(p.parent),
      slots = p.concurrency and { taken = taken < huge and taken or p.concurrency, of = p.concurrency },
      counting = p.concurrency and not slots.is_counted(ctx, id, p) or nil,
      paid = paid_of(ctx, p, due, constraint), credit = credit_of(ctx, p, constraint),
      slow_us = constraint and constraint.slowdown and max(0, constraint.slowdown.till - ctx.now) or nil,
      told = told_of(ctx, p, constraint),
      quotas = p.quotas and quota.used(constraint and constraint.windows, p.quotas, ctx.now),
      policy = {
        count = rated.count, period_us = rated.period_us,
        job_count = (p.job_count or 0) > 0 and p.job_count or nil, job_period_us = p.job_period_us, ttl_us = p.ttl_us,
        dedup_us = not budget_name and p.dedup_us or nil, cost_max = p.cost_max, capacity = p.capacity,
        lease_ms = tried.lease_ms, attempts = tried.attempts, backoff_initial_us = tried.backoff_initial_us,
        backoff_max_us = tried.backoff_max_us, overflow = p.overflow, route = p.route,
        catch_up_us = p.catch_up_us, admit = p.admit and p.admit[1] and p.admit, within = p.within, weight = p.weight,
        concurrency = p.concurrency, ordered = p.ordered, told = p.told,
      },
    }
  end

  -- share_of: the budget whose share a node waits for: how many nodes wait there, and how many of them are ahead.
  local function share_of(ctx, id, from, due)
    local of = waiting.budget(ctx, from)
    if not of then return nil end
    local b = chain.budget_of(id) and budget.get(ctx, id)
    local key = b and waiting.line(ctx, of, next(b.routes) or '') or from
    return { of = chain.budget_of(of), waiting = budget.waiting(ctx, budget.get(ctx, of)),
      ahead = waiting.ahead(ctx, key, id, due) }
  end

  -- budget_level: the level of a budget.
  local function budget_level(ctx, b)
    local p, has_work = b.p, b.state and b.state ~= ctx.k.rest
    if not p then
      return {
        kind = 'budget',
        name = chain.budget_of(b.id),
        place = 'refused',
        refused = 'no [[budget]] matches it',
        policy = {},
      }
    end
    local level = level_of(ctx, b.id, p, b.state, budget.known_due(ctx, b), b.constraint)
    level.waiting = has_work and budget.waiting(ctx, b) or 0
    level.share = has_work and share_of(ctx, b.id, b.state, b.at) or nil
    return level
  end

  -- chain_of: all levels, from a bucket to its root.
  local function chain_of(ctx, s)
    local list = { level_of(ctx, s.bucket, s.p, s.state, s.due, s.constraint) }
    list[1].share = s.state and share_of(ctx, s.bucket, s.state, s.stored_due) or nil
    if s.p.refused or not s.p.parent then return list end
    for _, b in ipairs(budget.ancestors(ctx, s.p.parent)) do list[#list + 1] = budget_level(ctx, b) end
    return list
  end

  -- route_of: the facts about the route of a bucket; for a held bucket also how many others have their turns before it.
  local function route_of(ctx, s, r, workers)
    local now = routes.now(ctx, s.p.route, r)
    local is_waiting = now.held > 0 and waiting.is_set(ctx, s.state)
    return {
      name = s.p.route, ready = r.ready, max_ready = ctx.limits.max_ready, pending = r.group and r.group.pending or 0,
      workers = workers,
      oldest_ms = r.oldest and ms(now.age_us) or nil, to = r.to, age_us = now.age_us, window_us = now.window_us,
      limit = now.limit,
      is_own_window = (ctx.rec.base or ctx.rec).ready_windows
        and (ctx.rec.base or ctx.rec).ready_windows[s.p.route] ~= nil or nil,
      held = now.held, taken = now.taken, over_us = now.over_us,
      ahead = is_waiting and turn_at.ahead(ctx, s) or nil,
    }
  end

  -- workers_of: the workers of a route: name, leases held and ms since it was last heard of, for each. Those that hold
  -- most come first. The second reply is how many there are. None is listed where a call would have to read very many.
  local function workers_of(ctx, r)
    local list, reply, there_are = {}, {}, r.group and r.group.consumers or 0
    if there_are > CONSUMERS_READ then return reply, there_are end
    if r.group then list = route.workers_of(ctx, r.stream) end
    table.sort(list, function(a, b)
      if a.pending ~= b.pending then return a.pending > b.pending end
      return a.name < b.name
    end)
    for i = 1, min(#list, CONSUMERS_MOST) do
      base.append(reply, list[i].name, list[i].pending, list[i].idle)
    end
    return reply, #list
  end

  -- answer: a reply with these facts, and those that are the same for a bucket and a budget.
  local function answer(ctx, facts, workers)
    facts.daemons, facts.has_record, facts.spreading = alive(ctx), ctx.id ~= nil, ctx.old_rec ~= nil
    return { ctx.now_text, cjson.encode(facts), call('HGET', ctx.k.policy, 'source') or '', workers }
  end

  -- drip__explain: all facts about why a bucket waits.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us
  -- reply  { now_us (a text), the facts (JSON), where the record is from (JSON, '' = not known),
  --          { worker, leases held, idle_ms, ... } (at most 100 workers; their names may be any bytes) }
  -- errors BADBUCKET
  -- cost   O(gates, workers), the bytes of one job and of the source of the record
  function explain.explain(redis_keys, args)
    local ctx, b, err = look(redis_keys, args[1])
    if err then return err end
    local s, wrong = decide(ctx, b), {}
    local function is_wrong(key, type, wanted, of)
      if type then wrong[#wrong + 1] = { key = key, type = type, wanted = wanted, of = of } end
    end
    is_wrong(b.queue, b.wrong, 'list')
    local broken, must = keys.of_wrong_type(ctx.space)
    local stops_all = broken == ctx.k.budgets or broken == ctx.k.waiting -- no daemon gets past these, or past another
    if broken and (stops_all or alive(ctx) == 0) then is_wrong(broken, call('TYPE', broken).ok, must, 'slots') end
    local aside, r = aside_of(ctx, b.name), route.look(ctx, s.p.route)
    is_wrong(aside.retry.key, aside.retry.wrong, 'sorted set')
    is_wrong(aside.later.key, aside.later.wrong, 'sorted set', 'delayed')
    is_wrong(r.wrong_key or r.stream, r.wrong, r.wanted or 'stream', 'route')
    if s.p.concurrency and slots.count(ctx, s.bucket) == huge then
      is_wrong(ctx.k.inflight, pcall_redis('TYPE', ctx.k.inflight).ok, 'sorted set', 'slots')
    end
    local gates, refused = gate.read(ctx, s)
    for i, one in ipairs(gates or {}) do
      gates[i] =
        { limiter = one.name, limit = one.p.limit, remaining = max(0, one.state.free), wait_ms = gate.wait_ms(one) }
    end
    local workers, how_many = workers_of(ctx, r)
    local is_parked = b.state == ctx.k.schedule and b.due > ctx.now
    return answer(ctx, {
      place = state.word(ctx, s.state), depth = s.len, over = s.over, keeps = s.allowance,
      parked = is_parked and memory.ask_parked(ctx.memory, b.name, b.due) or nil,
      wrong = wrong[1] and wrong, levels = chain_of(ctx, s),
      gates = gates and gates[1] and gates, bad_gate = refused and refused.err,
      retries = in_facts(ctx, aside.retry), delayed = in_facts(ctx, aside.later),
      route = route_of(ctx, s, r, how_many),
    }, workers)
  end

  -- drip__explain_budget: the same for a budget.
  -- keys   <prefix>:policy
  -- args   now_us, its name
  -- reply  { now_us (a text), the facts (JSON): levels, daemons, has_record, spreading; where the record is from }
  -- errors BADARG: the name is invalid, or no [[budget]] matches it
  -- cost   O(levels)
  function explain.budget(redis_keys, args)
    local space, name = keys.space_before(redis_keys[1], 'policy'), args[2] or ''
    if not space or not names.is_bucket(name) then
      return refuse('BADARG', 'explain_budget takes the policy key and the name of a budget')
    end
    local ctx = context.open(space, args[1])
    if not ctx.rec.has_budgets or not record.policy_of(ctx.rec, chain.id_of(name)) then
      return chain.unknown(name)
    end
    local levels = {}
    for _, b in ipairs(budget.ancestors(ctx, chain.id_of(name))) do levels[#levels + 1] = budget_level(ctx, b) end
    return answer(ctx, { levels = levels })
  end

  -- note_limits: the limits of a policy that a forecast leaves out: it only knows the pace.
  local function note_limits(met, p)
    if p.quotas then met.quota = true end
    if p.concurrency or p.limited then met.slots = true end
    if p.parent then met.budget = true end
    if p.job then met['job-rate'] = true end
  end

  -- run: when the last of n jobs of a bucket leaves, if nothing but time passes: each timed setting ends at its end.
  -- `entry` has the settings of its name, `till` is when the first of all settings ends. A pause that does not end by
  -- itself is taken to end now. Replies a time on the server's clock. `met` gets the word of each such pause and limit
  -- on the way.
  local function run(ctx, s, entry, till, n, met)
    local last
    ctx.old_rec = nil
    while true do
      local p, k = s.p, n
      local is_paused = p.paused and p.set.pause.setting.till
      if p.paused and not is_paused then met.paused = true end
      note_limits(met, p)
      if not is_paused then
        -- Lateness up to catch_up is made up, more is not, and none of a pause.
        local due = max(s.due, p.paused and ctx.now or ctx.now - p.catch_up_us)
        if till then k = rate.before(p, due, n, till) end
        if k > 0 then
          last, s.due, n = max(ctx.now, rate.nth(p, due, k)), rate.nth(p, due, k + 1), n - k
        end
      end
      if n == 0 then return last end
      local allowance, from, due = s.allowance, p.paused and ctx.k.paused or ctx.k.schedule, s.due
      ctx.now, ctx.policies_before = till, { [s.bucket] = p }
      p, till = record.policy_at(ctx.rec, s.bucket, entry, till)
      if s.constraint then s.constraint.pace = nil end -- the due has moved since
      bucket.decide(ctx, s, s.bucket, s.queue, n, from, due, allowance, p)
    end
  end

  -- costs_of: what the oldest jobs of a queue cost beyond 1 each: a list whose n-th number is the sum for the first n.
  -- Jobs that were not read count as 1. The second reply is true where that may be too little, or where any of them
  -- costs more.
  local function costs_of(ctx, b)
    local sums, sum, bytes = {}, 0, 0
    if not ctx.magic or b.len == 0 or pcall_redis('HLEN', ctx.k.jobs .. b.name) == 0 then return sums, false end
    while #sums < min(b.len, COSTS_READ) and bytes < MIB do
      local job = call('LINDEX', b.queue, -(#sums + 1))
      local o = envelope.read(ctx.magic, job)
      if o and not o.is_newer then
        o = envelope.changed_by(ctx.magic, o, ids.at_turn(ctx, b.name, o.id, 'q', o.accepted_us).changed)
      end
      bytes, sum = bytes + #job, sum + (o and o.cost or 1) - 1
      sums[#sums + 1] = sum
    end
    return sums, sum > 0 or #sums < b.len
  end

  -- forecast: how many jobs wait, when the last of them leaves, and when no retry and no delayed job waits any more
  -- either, both in us from now (-1: there is none). Each retry is taken to succeed. `aside` are the retries and the
  -- delayed jobs. `costs` is what the jobs before the last cost beyond 1 each. `met` is that of `run`.
  local function forecast(ctx, s, entry, till, aside, costs, met)
    local now, retry, later, reply = ctx.now, aside.retry, aside.later, { s.len, -1, -1 }
    local function leaves(n)
      local after = base.copy(s)
      after.due = s.due or now
      -- A wait for its route or for a slot gives no credit. While buckets are held for its route it waits for its turn.
      if state.is_held(ctx, s.state) or s.state == ctx.k.full then after.due = max(after.due, now) end
      if ctx.held ~= '' then after.due = max(after.due, now + turn_at.route(ctx, s)) end
      local at = run(ctx, after, entry, till, n, met)
      ctx.now, ctx.policies_before = now, false
      return min(at - now, FAR)
    end
    -- Delayed jobs whose time has come take turns with the queue, one job each.
    local extra = costs[min(#costs, s.len - 1)] or 0
    if s.len > 0 then reply[2] = leaves(s.len + extra + retry.ended + min(later.ended, s.len - 1)) end
    reply[3] = reply[2]
    if retry.waiting + later.waiting > 0 then
      reply[3] = leaves(s.len + extra + retry.waiting + later.waiting)
      for _, key in ipairs({ ctx.k.retry, ctx.k.delayed }) do
        local last = pcall_redis('ZRANGE', key .. s.bucket, '-1', '-1', 'WITHSCORES')
        if not last.err and last[2] then reply[3] = max(reply[3], last[2] - now) end
      end
    end
    return reply
  end

  -- why_not_exact: what the forecast of some jobs leaves out, a word each; `met` has the words of the policies on the
  -- way.
  local function why_not_exact(ctx, s, aside, n, met)
    local r, why = route.look(ctx, s.p.route), {}
    if aside.retry.waiting > 0 then why[#why + 1] = 'retries' end
    if aside.later.waiting > 0 then why[#why + 1] = 'delayed' end
    if s.constraint and constraints.factor(s.constraint, s.p) < 1 then met.slow = true end
    note_limits(met, s.p)
    for _, word in ipairs({ 'costs', 'job-rate', 'paused', 'quota', 'slots', 'slow', 'budget' }) do
      if met[word] then why[#why + 1] = word end
    end
    local left = ctx.limits.max_ready - r.ready
    local is_held = left <= 0 or waiting.held(ctx, s.p.route) > 0
    if r.wrong then why[#why + 1] = 'wrong-type' elseif is_held then why[#why + 1] = 'held' elseif left < n then
      why[#why + 1] = 'room'
    end
    if alive(ctx) == 0 then why[#why + 1] = 'no-daemon' end
    return why
  end

  -- change_of: the settings of a bucket's name after a change, its policy then, and until when; or nil and an error in
  -- the fourth reply.
  local function change_of(ctx, b, text)
    local c, err = change.read(text)
    if err then return nil, nil, nil, err end
    local entry, is_newer = settings.of_name(ctx, b.name)
    if is_newer then
      return nil, nil, nil, refuse('BADARG', ctx.k.settings .. ' was written by a newer version of dripd; use that one')
    end
    entry = entry or setting.new()
    setting.without_over(entry, ctx.now)
    change.alter(ctx, c, entry, 0)
    return entry, record.policy_at(ctx.rec, b.name, entry, ctx.now)
  end

  -- drip__what_if: what a change or a push would do to a bucket, computed from its present state. Nothing is changed.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us, the change (JSON, as drip__set takes it), how many jobs are pushed
  -- reply  { the verdict (what drip_push would reply; empty: nothing is pushed), how many jobs would be dropped for
  --        them,
  --          { jobs that wait, us until the last leaves, us until no retry or delayed job waits any more } without the
  --          change,
  --          the same with the change and the push,
  --          { why that is a lower bound, ... } (none: it is exact to one interval): retries, delayed, costs, job-rate,
  --          paused, quota, slots, slow, budget, held, room, no-daemon, wrong-type }
  -- errors BADBUCKET BADARG TOOMANY WRONGTYPE
  -- cost   O(settings that apply to the bucket), and the bytes of one job; where jobs with options wait, the bytes of
  --        as many as are read for their costs
  function explain.what_if(redis_keys, args)
    local ctx, b, err = look(redis_keys, args[1])
    if err then return err end
    if b.wrong then return base.wrong_type(b.queue, 'list') end
    local n = integer(args[3] or '0')
    if not n then return refuse('BADARG', 'what-if takes the change as JSON, and a whole number of jobs') end
    local entry, p, till
    entry, p, till, err = change_of(ctx, b, args[2])
    if err then return err end
    local s, aside = decide(ctx, b), aside_of(ctx, b.name)
    local costs, may_cost = costs_of(ctx, b)
    local old_rec, policy_before, own = ctx.old_rec, bucket.policy_before(ctx, b.name), settings.of_name(ctx, b.name)
    local _, own_till = record.policy_at(ctx.rec, b.name, own, ctx.now)
    local met = { costs = may_cost }
    local before = forecast(ctx, s, own, own_till, aside, costs, met)
    ctx.old_rec, ctx.policies_before = old_rec, { [b.name] = policy_before }
    s = decide(ctx, b, p)
    ctx.policies_before = false
    local verdict, dropped = {}, 0
    if n > 0 then
      local gates
      gates, err = gate.read(ctx, s)
      if err then return err end
      local accepted = push.fits(s, gates, n)
      if accepted > 0 then
        push.begins(ctx, s)
        dropped = max(0, s.len + accepted - push.allowance_of(s))
        if dropped > 0 then costs = {} end -- the dropped jobs are the oldest
        s.len = s.len + accepted - dropped
      end
      verdict = push.verdict(ctx, s, gates, n, accepted)
    end
    local after = forecast(ctx, s, entry, till, aside, costs, met)
    return { verdict, dropped, before, after, why_not_exact(ctx, s, aside, s.len, met) }
  end
end
