-- needs: base, context.memory, limits.constraint_store, limits.constraints, pace.rate, pace.share, policy.chain,
--   policy.record, state.bucket, state.waiting
-- Budgets: paced nodes without a queue, shared by the buckets and budgets below them. This file has what is known of a
-- budget, and what keeps a job from leaving through its path. Their states are in tree/states. What a job that leaves
-- costs each budget is in tree/path.
--
-- A budget has work while something waits for a share of it, in its line for any route. It is in one state, as a bucket
-- is (state/transitions). Its places in other lines are an index, made of that state and of the routes of its lines:
-- while it is queued it stands in the line of the budget above it for each of them; a budget without one above it
-- stands in the lines of these routes (state/line) while it is held, and, where its due is near, while it is scheduled.
-- The score of a cooling budget is its due plus its catch-up; Redis may have a time up to a second later
-- (`cool_passed`, tree/states). For a budget with work the hash <prefix>:budgets has "<due> <resumed_at> <virtual_time>
-- <at> /<route>=<place>/<route>=<place>... <state>", the state being the key of its set without the prefix, and the
-- place the due with which it stands in the line of that route, 0: it does not:
--   due           when its next job may leave
--   resumed_at    when it last resumed after a pause: that wait is not lateness, neither its own nor of anything below
--                 it. While a constraint holds it (limits/constraints) this is when it will resume
--   virtual_time  of its waiting set (pace/share)
--
-- The fields of a budget, `b`:
--   id, p         p: its policy, nil where no entry of the configuration matches
--   routes        the routes for which it has a line, route -> its place in the line of that route, or false
--   due, resumed_at, virtual_time, state
--   at            its score in that set; while it cools the real end of that, as of the last write (share.rest_ends)
--   stored_state, stored_at  the set in which Redis has it, waiting sets aside, and its score there: it may move more
--   than once in a call
--   is_stored     whether the hash has it
--   constraint    its constraint (limits/constraints), nil: none
--   shares, tags  the finish tags of its children (pace/share)
--   serving       it has its turn: nodes that wait for it do not stop what it serves now
--   changed       it is to be written at the end of the call
--   is_open       see budget.is_open; nil: not decided yet
--   covered       see budget.cover; only of an open one
-- A budget is remembered between calls as long as no other server can have written it.

local budget = {}
do
  local digits, policy_of = base.digits, record.policy_of

  budget.AHEAD_US = 1000000.5 -- the stored end of cooling is later than the real one by this (tree/states)

  local STORED = '^(%d+) (%d+) (%S+) (%d+) (/%S*) (.+)$'
  local BEFORE_37 = '^(%d+) (%d+) (%S+) (%d+) (.+)$' -- as versions before 37 of this library stored it
  local KNOWN_MOST = 50000 -- budgets that are remembered, of one space

  budget.NO_ROUTES = {} -- of all budgets for which nothing waits

  -- ---- what is known of a budget ----

  local function decode(ctx, id, text, rests_till)
    -- Most budgets never have more than these sixteen fields. With one more the table would have room for 32.
    local b = {
      id = id, p = policy_of(ctx.rec, id), due = 0, resumed_at = 0, virtual_time = 0, at = 0, state = nil,
      routes = budget.NO_ROUTES,
      stored_state = nil, stored_at = 0, shares = nil,
      tags = nil, call = ctx.calls, changed = false, is_open = nil, covered = 0,
    }
    local due, resumed_at, now, at, routes, word
    if text then due, resumed_at, now, at, routes, word = match(text, STORED) end
    if text and not due then due, resumed_at, now, at, word = match(text, BEFORE_37) end
    if routes and routes ~= '/' then
      b.routes = {}
      for name, place in gmatch(routes, '/([^/=]+)=(%d+)') do b.routes[name] = place ~= '0' and place + 0 end
    end
    if due then
      b.due, b.resumed_at, b.virtual_time, b.at, b.state =
        due + 0, resumed_at + 0, now + 0, at + 0, ctx.k.prefix .. ':' .. word
      b.is_stored = true
    elseif rests_till then
      b.at, b.state = rests_till + 0, ctx.k.rest
    end
    if b.state and not waiting.is_set(ctx, b.state) then b.stored_state, b.stored_at = b.state, b.at end
    b.shares = share.known(ctx.memory.budgets.shares, id, b.is_stored and b.virtual_time)
    if b.stored_state == ctx.k.rest then b.at = share.rests_till(b.shares, b.at) end
    b.tags = b.shares.tags
    if not b.is_stored then b.virtual_time = b.shares.virtual_time end
    return b
  end

  function budget.encode(ctx, b)
    local routes = ''
    for name, place in pairs(b.routes) do routes = routes .. '/' .. name .. '=' .. digits(place or 0) end
    return table.concat(
      { digits(b.due), digits(b.resumed_at), base.exact(b.virtual_time), digits(b.at), routes == '' and '/' or routes,
        sub(b.state, #ctx.k.prefix + 2) },
      ' '
    )
  end

  -- first: the child of a budget whose turn is next, of those in its lines for the routes `takes`, nil: for all; nil:
  -- none. Its fields are those of `waiting.first`, and the key and the `route` of its line.
  -- waiting: how many children wait, at most: a budget may stand in several lines.
  function budget.first(ctx, b, takes, wanted)
    local best
    for name in pairs(b.routes) do
      if not takes or takes[name] then
        local key = waiting.line(ctx, b.id, name)
        local one = waiting.first(ctx, key, wanted)
        if one and (not best or waiting.is_before(one.rank, one.member, best)) then
          best, one.key, one.route = one, key, name
        end
      end
    end
    return best
  end

  function budget.waiting(ctx, b)
    local n = 0
    for name in pairs(b.routes) do n = n + waiting.count(ctx, waiting.line(ctx, b.id, name)) end
    return n
  end

  -- found: a budget was found in a line for a route, with this place in that of the route itself. What `budgets` says
  -- of it may have been lost. Replies whether anything waits for it there.
  function budget.found(ctx, b, name, place)
    if b.routes[name] ~= nil and (b.routes[name] or false) == (place or b.routes[name]) then return true end
    if waiting.is_empty(ctx, waiting.line(ctx, b.id, name)) then return false end
    if b.routes == budget.NO_ROUTES then b.routes = {} end
    b.routes[name] = place or false
    budget.change(ctx, b)
    return true
  end

  -- note_away: a child of a budget has had its turn. Where it has more work, and is not due yet, it counts as one that
  -- waits (`turns`) until it comes back, or another one has a turn. `name` is its route, nil: any.
  -- comes_back: a child waits again.
  -- turns: how many turns a budget has in a round of a route: one for each child.
  function budget.note_away(b, id, name) b.shares.away, b.shares.away_route = id, name end

  function budget.comes_back(b, id) if b.shares.away == id then b.shares.away = nil end end

  function budget.turns(ctx, b, name)
    local n, route_away = waiting.count(ctx, waiting.line(ctx, b.id, name)), b.shares.away_route
    if b.shares.away and (not route_away or route_away == name) then n = n + 1 end
    return max(n, 1)
  end

  -- change: mark a budget to be written at the end of the call.
  local function change(ctx, b)
    if b.changed then return end
    local list = ctx.memory.budgets.changed
    local n = #list
    b.changed = true
    list[n + 1] = b
    if n == 0 then ctx.write_budgets = budget.flush end
  end
  budget.change = change

  -- reconcile: re-anchor the due of a budget where its policy changed since it was last looked at. A due lies at most
  -- `max_ahead_us` (one interval) in the future: beyond that, the clock stepped back.
  local function reconcile(ctx, b)
    local p = b.p
    if not p then return end
    local old, in_rollout = p.over, false
    if ctx.old_rec or ctx.policies_before then old, in_rollout = bucket.changed_from(ctx, b.id, p) end
    if b.state == ctx.k.rest and b.due == 0 then b.due = max(0, b.at - (old or p).catch_up_us) end
    if old then
      b.unapplied, b.in_rollout = true, in_rollout -- flush marks it as applied
      change(ctx, b)
      if not p.count then
        b.due = 0
      elseif b.due > 0 and constraints.changes_pace(old, p) then
        b.due = old.count and constraints.re_anchor(ctx, b.constraint, old, p, b.due) or min(b.due, ctx.now)
      end
    end
    local max_ahead_us = constraints.max_ahead_us(b.constraint, p)
    if b.due > ctx.now + max_ahead_us then
      b.due = ctx.now + max_ahead_us
      change(ctx, b)
    end
  end

  -- hold: apply the constraint of a budget to it (limits/constraints).
  local function hold(ctx, b)
    if not b.constraint and b.resumed_at <= ctx.now and not (b.p and b.p.quotas) then return end
    b.is_open = nil
    if b.p and constraints.hold_budget(ctx, b, b.p) then change(ctx, b) end
  end

  -- forgive_migration: a partition that migrated resumed after the budget was due. That wait is not lateness.
  local function forgive_migration(ctx, b) if b.due > 0 then b.due = ctx.resumed_at end end

  -- known: the budgets that are remembered. Nothing is believed during a rollout, after a call that raised or did not
  -- write all, or under another record. After a while without a drain context drops them too.
  local function known(ctx)
    local m = ctx.memory
    local all = m.budgets
    if all and all.call == ctx.calls then return all end
    if not all or share.is_full(all.shares) then
      memory.forget_budgets(m, share.none())
    elseif ctx.old_rec or ctx.policies_before or all.count > KNOWN_MOST or all.changed[1] or not all.is_written
      or all.rec and all.rec ~= ctx.rec then
      memory.distrust(m)
    end
    all = m.budgets
    all.call, all.rec = ctx.calls, ctx.rec
    return all
  end

  -- load: read budgets that are needed next, all at once.
  -- reads   budgets, rest, slow, windows; `reached` during a rollout      cost  2 calls, 1 for each kind of constraints
  --         that is stored, and 1 a budget during a rollout
  function budget.load(ctx, ids)
    local all, missing = known(ctx), {}
    for _, id in ipairs(ids) do
      if not all.of[id] then missing[#missing + 1] = id end
    end
    if #missing == 0 then return end
    local texts = call('HMGET', ctx.k.budgets, unpack(missing))
    local rests, found = call('ZMSCORE', ctx.k.rest, unpack(missing)), constraint_store.read(ctx, missing)
    for i, id in ipairs(missing) do
      local b = decode(ctx, id, texts[i], rests[i])
      all.of[id], all.count = b, all.count + 1
      if found[i] then b.constraint = found[i] end
      if b.constraint and b.constraint.changed then change(ctx, b) end
      reconcile(ctx, b)
      hold(ctx, b)
      if b.due < ctx.resumed_at then forgive_migration(ctx, b) end
    end
  end

  -- begin: take over a remembered budget into this call. A timed setting may have begun or ended since. For an open
  -- budget without settings only the time has changed.
  local function begin(ctx, b)
    local p = b.p
    b.call = ctx.calls
    if b.due < ctx.resumed_at then forgive_migration(ctx, b) end
    if b.is_open and not ctx.rec.version and not ctx.policies_before and b.due <= ctx.now + p.interval_us then
      return
    end
    b.is_open, b.p = nil, policy_of(ctx.rec, b.id)
    if b.constraint and constraint_store.reconcile(ctx, b.constraint) then change(ctx, b) end
    if p ~= b.p then memory.forget_paths(ctx.memory.budgets) end
    reconcile(ctx, b)
    hold(ctx, b)
  end

  function budget.get(ctx, id)
    local all = ctx.memory.budgets
    local b = all and all.call == ctx.calls and all.of[id]
    if not b then
      budget.load(ctx, { id })
      b = ctx.memory.budgets.of[id]
    end
    if b.call ~= ctx.calls then begin(ctx, b) end
    return b
  end

  function budget.constraint_changed(ctx, b)
    constraint_store.change(ctx, b.constraint)
    change(ctx, b)
  end

  -- change_constraint: change the constraint of a budget, then reconcile the budget: `act` gets the constraint and the
  -- policy. Replies what `act` replies.
  function budget.change_constraint(ctx, id, act)
    local b = budget.get(ctx, id)
    b.constraint, b.is_open = b.constraint or constraints.new(id), nil
    local reply = act(b.constraint, b.p)
    -- What was left of its rate may be all of it again.
    b.due = min(b.due, ctx.now + constraints.max_ahead_us(b.constraint, b.p))
    budget.constraint_changed(ctx, b)
    hold(ctx, b)
    budget.reconcile(ctx, id)
    return reply
  end

  -- expect: these nodes are needed next. The budgets above them that are not remembered are read at once.
  function budget.expect(ctx, names)
    if not ctx.has_budgets then return end
    local all, ids, seen = known(ctx), {}, {}
    local of = all.of
    for i = 1, #names do
      local p = policy_of(ctx.rec, names[i])
      local id = chain.budget_of(names[i]) and names[i] or p and not p.refused and p.parent
      while id and not of[id] and not seen[id] do
        seen[id], ids[#ids + 1] = true, id
        local up = policy_of(ctx.rec, id)
        id = up and up.parent
      end
    end
    if ids[1] then budget.load(ctx, ids) end
  end

  -- ancestors_of: the path above a node with this parent: its budgets, nearest first. The path is remembered.
  local function ancestors_of(ctx, parent)
    local all, calls = ctx.memory.budgets, ctx.calls
    local ancestors = all and all.paths[parent]
    if ancestors and all.begun[ancestors] == calls then return ancestors end
    all = known(ctx)
    ancestors = all.paths[parent]
    for i = 1, ancestors and #ancestors or 0 do
      local b = ancestors[i]
      if b.call ~= calls then begin(ctx, b) end
    end
    if not ancestors or all.paths[parent] ~= ancestors then
      local b = budget.get(ctx, parent)
      ancestors = { b }
      -- A chain that cannot be resolved ends at the refused budget: it may be a circle.
      while b.p and b.p.parent and not b.p.refused and #ancestors < chain.LEVELS_MOST do
        b = budget.get(ctx, b.p.parent)
        ancestors[#ancestors + 1] = b
      end
      all.paths[parent] = ancestors
    end
    all.begun[ancestors] = calls
    return ancestors
  end
  budget.ancestors = ancestors_of

  -- terms_of: what an open budget with this policy needs for each job. All budgets of one entry share one table: there
  -- may be thousands of them, and a dispatch is the slower the more memory it touches.
  --   makes_up   the lateness that it may make up for
  --   step       its interval where that is whole, else false
  --   weight     its weight in the budget above
  local function terms_of(p)
    local source = p.made_of or p
    local terms = source.terms
    if not terms or terms.makes_up ~= p.catch_up_us then
      terms = { makes_up = p.catch_up_us, step = p.part == 0 and p.step, weight = p.weight }
      source.terms = terms
    end
    return terms
  end

  -- is_open: the terms of an open budget, else false. Only the due of an open budget can keep a job back, and a job
  -- changes nothing but that due. The answer is remembered until the policy, constraint, state or turn of the budget
  -- changes.
  function budget.is_open(ctx, b)
    if b.is_open ~= nil then return b.is_open end
    local p, state_now = b.p, b.state
    local is_open = p ~= nil and p.count ~= nil
      and not (p.paused or p.refused or p.concurrency or p.quotas or p.job or b.constraint) and b.resumed_at == 0
      and (not state_now or state_now == ctx.k.rest or b.serving)
    b.is_open = is_open and terms_of(p)
    if is_open then budget.cover(ctx, b) end
    return b.is_open
  end

  -- cover: set `covered`, the stored end of cooling of an open budget: a job that leaves it cooling until then at most
  -- has nothing to write.
  function budget.cover(ctx, b)
    b.covered = b.state == ctx.k.rest and b.stored_state == b.state and not b.is_stored and b.stored_at or 0
  end

  -- set_serving: the turn of a budget begins or ends. `finish` is the rank with which it was granted, nil where nobody
  -- granted it.
  function budget.set_serving(b, is, finish)
    b.serving, b.finish, b.is_open = is, finish, nil
  end

  -- ---- shares ----

  -- drop_stale_tag: a child that had no work has some. Where it was away for long enough its tag is dropped, as if it
  -- were new.
  function budget.drop_stale_tag(ctx, parent, id)
    local b = budget.get(ctx, parent)
    local tag, shares = b.tags[id], ctx.memory.budgets.shares
    if tag and share.is_forgotten(tag, b.virtual_time, b.shares.largest) then
      b.tags[id], shares.tag_count = nil, shares.tag_count - 1
    end
  end

  -- finish_of: the finish tag of the next job of a child.
  function budget.finish_of(b, id, p)
    return share.finish_of(b.tags[id], b.virtual_time, p.weight, b.shares)
  end

  -- ---- what keeps a job from leaving ----

  -- eligible_at: the eligible time of the i-th budget of a path, by its own rate. Time in a pause, its own or of a
  -- budget above it, is not lateness. It may make up for no more than its catch-up, and a budget without a rate for
  -- nothing.
  local function eligible_at(ctx, list, i)
    local b = list[i]
    local due = max(b.due, b.resumed_at)
    for k = i + 1, #list do
      local resumed_at = list[k].resumed_at
      -- Where it lies in the future, that budget itself does not admit the job.
      if resumed_at > due then due = max(due, min(resumed_at, ctx.now)) end
    end
    return max(due, b.p.count and ctx.now - constraints.catch_up_us(b.p, b.constraint, list[i + 1], ctx.now) or ctx.now)
  end

  budget.eligible_at = eligible_at

  -- known_due: when the next job of a budget may leave, as far as is known, for people; or nil.
  function budget.known_due(ctx, b)
    return (b.p and b.p.count and b.due > 0 or b.resumed_at > ctx.now) and max(b.due, b.resumed_at) or nil
  end

  -- eta_ms: when the n-th job of a bucket could leave, by the budgets above alone, as if there were no siblings. The
  -- second reply is the id of the budget that decides.
  function budget.eta_ms(ctx, parent, n)
    local list, latest, decides = ancestors_of(ctx, parent), 0, parent
    for i, b in ipairs(list) do
      local at = b.p and max(eligible_at(ctx, list, i), ctx.now)
      local eta = at and (b.p.count and rate.eta_ms(b.p, at, ctx.now, n) or ceil((at - ctx.now) / 1000)) or 0
      if eta > latest then latest, decides = eta, b.id end
    end
    return latest, decides
  end
end
