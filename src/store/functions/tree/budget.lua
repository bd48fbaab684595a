-- needs: base, base.memory, jobs.slots, pace.brake, pace.rate, policy.chain, policy.record, queue.bucket, tree.share,
--   tree.waiting
-- Budgets: paced nodes without a queue, shared by the buckets and budgets below them. What is true of one, what keeps a job from
-- leaving through a chain of them. Where they stand is in tree/stand, what a job that leaves costs each in tree/path.
--
-- A budget has work while something waits for a share of it. Then it stands in one place, as a bucket does:
--   k.schedule             it waits for its own due, or may go now
--   k.paused               an operator stopped it
--   k.refused              its own budgets cannot be found, or it is none any more
--   k.full                 as many jobs below it are in flight as may be
--   k.wait .. <budget>     it waits for its share of the budget above it
-- and without work:
--   k.rest                 until nothing that is known of it makes a difference: its due is over by its catch-up
-- At rest its score says when that is, so its due is that less its catch-up; Redis may have a later time, by up to a second (`passed`,
-- tree/stand). Of one that has work <prefix>:budgets keeps "<due> <resumed_at> <now> <at> <place>", the place without its prefix:
--   due       when its next job may leave
--   resumed_at   when it last went on after a wait by order: that wait is no lateness of it, nor of anything below it. While a brake holds
--             it (pace/brake) that is when it will go on
--   now       of its waiting set (tree/share)
--
-- The state `b` of a budget: id, p (its policy, nil where none of the configuration is meant), due, resumed_at, now, place, at (its score
-- there; at rest the real end of that, as of when it was last written: see share.rest_ends), stands, stands_at (the set in which Redis has it,
-- waiting sets aside, and the score there: it may move more than once in a call), brake (pace/brake; nil: none), shares and tags (tree/share: the tags
-- of its children), serving (its turn has come: what waits for it is no obstacle to what it serves), changed, is_open (see budget.is_open; nil: to
-- be found out), covered (see budget.cover; of one that is open). It is remembered from call to call as long as no other server can have written
-- another one.

local budget = {}
do
  local digits, policy_of = base.digits, record.policy_of

  budget.AHEAD_US = 1000000.5 -- of a budget that rests a time is stored that is so much later than the real one (tree/stand)

  local STATE = '^(%d+) (%d+) (%S+) (%d+) (.+)$'
  local KNOWN_MOST = 50000 -- budgets that are remembered, of one prefix

  -- ---- what is known of a budget ----

  local function decode(ctx, id, text, rests_till)
    -- All fields that most budgets ever have are sixteen at most: with one more the table has room for 32.
    local b = {
      id = id, p = policy_of(ctx.rec, id), due = 0, resumed_at = 0, now = 0, at = 0, place = nil, stands = nil, stands_at = 0, shares = nil,
      tags = nil, call = ctx.calls, changed = false, is_open = nil, covered = 0,
    }
    local due, resumed_at, now, at, place
    if text then due, resumed_at, now, at, place = match(text, STATE) end
    if due then
      b.due, b.resumed_at, b.now, b.at, b.place = due + 0, resumed_at + 0, now + 0, at + 0, ctx.k.prefix .. ':' .. place
      b.is_stored = true
    elseif rests_till then
      b.at, b.place = rests_till + 0, ctx.k.rest
    end
    if b.place and not waiting.budget(ctx, b.place) then b.stands, b.stands_at = b.place, b.at end
    b.shares = share.known(ctx.memory.budgets.shares, id, b.is_stored and b.now)
    if b.stands == ctx.k.rest then b.at = share.rests_till(b.shares, b.at) end
    b.tags = b.shares.tags
    if not b.is_stored then b.now = b.shares.now end
    return b
  end

  function budget.encode(ctx, b)
    return table.concat({ digits(b.due), digits(b.resumed_at), base.exact(b.now), digits(b.at), sub(b.place, #ctx.k.prefix + 2) }, ' ')
  end

  -- change: something of a budget is to be written at the end of the call.
  local function change(ctx, b)
    if b.changed then return end
    local list = ctx.memory.budgets.changed
    local n = #list
    b.changed = true
    list[n + 1] = b
    if n == 0 then ctx.write_budgets = budget.flush end
  end
  budget.change = change

  -- put_right: where what applies to a budget changed since it was last looked at, its due is re-anchored. No due lies further ahead
  -- than one interval: beyond that, the clock stepped back.
  local function put_right(ctx, b)
    local p = b.p
    if not p then return end
    local old, spreads = p.over, false
    if ctx.prev then old, spreads = bucket.before(ctx, b.id, p) end
    if ctx.was and ctx.was[b.id] then old, spreads = ctx.was[b.id], ctx.prev ~= nil end
    if b.place == ctx.k.rest and b.due == 0 then b.due = max(0, b.at - (old or p).catch_up_us) end
    if old then
      b.fresh, b.spreads = true, spreads -- it is marked where it is written
      change(ctx, b)
      if not p.count then
        b.due = 0
      elseif b.due > 0 and brake.is_other_pace(old, p) then
        b.due = old.count and brake.re_anchor(ctx, b.brake, old, p, b.due) or min(b.due, ctx.now)
      end
    end
    local reach_us = brake.reach_us(b.brake, p)
    if b.due > ctx.now + reach_us then
      b.due = ctx.now + reach_us
      change(ctx, b)
    end
  end

  -- hold: what its brake makes of a budget.
  local function hold(ctx, b)
    if not b.brake and b.resumed_at <= ctx.now and not (b.p and b.p.quotas) then return end
    b.is_open = nil
    if b.p and brake.hold_budget(ctx, b, b.p) then change(ctx, b) end
  end

  -- stood_still: the partition of a budget went on after the due of it: that wait is no lateness of it.
  local function stood_still(ctx, b) if b.due > 0 then b.due = ctx.resumed_at end end

  -- known: the budgets that are remembered. While a change spreads, after a call that only read or that raised, and under another record,
  -- nothing is believed; nor after a while without a drain (base/call).
  local function known(ctx)
    local m = ctx.memory
    local all = m.budgets
    if all and all.call == ctx.calls then return all end
    if not all or share.is_full(all.shares) then
      memory.forget_budgets(m, share.none())
    elseif ctx.prev or ctx.was or all.count > KNOWN_MOST or all.changed[1] or not all.is_written
      or all.rec and all.rec ~= ctx.rec then
      memory.distrust(m)
    end
    all = m.budgets
    all.call, all.rec = ctx.calls, ctx.rec
    return all
  end

  -- load: budgets are asked for next: what is stored of them is read at once.
  -- reads   budgets, rest, slow, windows; what was reached, while a change spreads      cost  2 calls, 1 for each kind of brakes
  --         that is stored, and 1 a budget while a change spreads
  function budget.load(ctx, ids)
    local all, missing = known(ctx), {}
    for _, id in ipairs(ids) do
      if not all.of[id] then missing[#missing + 1] = id end
    end
    if #missing == 0 then return end
    local texts = call('HMGET', ctx.k.budgets, unpack(missing))
    local rests, brakes = call('ZMSCORE', ctx.k.rest, unpack(missing)), brake.read(ctx, missing)
    for i, id in ipairs(missing) do
      local b = decode(ctx, id, texts[i], rests[i])
      all.of[id], all.count = b, all.count + 1
      if brakes[i] then b.brake = brakes[i] end
      if b.brake and b.brake.changed then change(ctx, b) end
      put_right(ctx, b)
      hold(ctx, b)
      if b.due < ctx.resumed_at then stood_still(ctx, b) end
    end
  end

  -- begin: a call begins with what is remembered of a budget. What operators set may have begun or ended since; else the time is all
  -- that has changed of one that is open.
  local function begin(ctx, b)
    local p = b.p
    b.call = ctx.calls
    if b.due < ctx.resumed_at then stood_still(ctx, b) end
    if b.is_open and not ctx.rec.version and not ctx.was and b.due <= ctx.now + p.interval_us then return end
    b.is_open, b.p = nil, policy_of(ctx.rec, b.id)
    if b.brake and brake.put_right(ctx, b.brake) then change(ctx, b) end
    if p ~= b.p then memory.forget_lines(ctx.memory.budgets) end
    put_right(ctx, b)
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

  function budget.brake_changed(ctx, b)
    brake.change(ctx, b.brake)
    change(ctx, b)
  end

  -- slowed: the brakes of a budget that is slowed down: what becomes of it is seen when it is put right.
  function budget.slowed(ctx, id, slow_down)
    local b = budget.get(ctx, id)
    b.brake, b.is_open = b.brake or brake.fresh(id), nil
    local reply = slow_down(b.brake)
    b.due = min(b.due, ctx.now + brake.reach_us(b.brake, b.p)) -- what was left of its rate may be all of it again
    budget.brake_changed(ctx, b)
    hold(ctx, b)
    budget.put_right(ctx, id)
    return reply
  end

  -- expect: these nodes are asked for next: of the budgets above them those that are not remembered are read at once.
  function budget.expect(ctx, names)
    if not ctx.has_budgets then return end
    local all, ids, seen = known(ctx), {}, {}
    local of, ways = all.of, all.ways
    for i = 1, #names do
      local p = policy_of(ctx.rec, names[i])
      if not p or not ways[p] then
        local id = chain.budget_of(names[i]) and names[i] or p and not p.refused and p.parent
        while id and not of[id] and not seen[id] do
          seen[id], ids[#ids + 1] = true, id
          local up = policy_of(ctx.rec, id)
          id = up and up.parent
        end
      end
    end
    if ids[1] then budget.load(ctx, ids) end
  end

  -- above: the budgets above a node that has this parent, the nearest first: its line. It is remembered as they are.
  local function above(ctx, parent)
    local all, calls = ctx.memory.budgets, ctx.calls
    local line = all and all.lines[parent]
    if line and all.begun[line] == calls then return line end
    all = known(ctx)
    line = all.lines[parent]
    for i = 1, line and #line or 0 do
      local b = line[i]
      if b.call ~= calls then begin(ctx, b) end
    end
    if not line or all.lines[parent] ~= line then
      local b = budget.get(ctx, parent)
      line = { b }
      -- A chain that cannot be resolved ends where that is so: it may be a circle.
      while b.p and b.p.parent and not b.p.refused and #line < chain.LEVELS_MOST do
        b = budget.get(ctx, b.p.parent)
        line[#line + 1] = b
      end
      all.lines[parent] = line
    end
    all.begun[line] = calls
    return line
  end
  budget.above = above

  -- trusted: the lines that a call may believe as they are where all budgets of one are open: nothing has happened that `begin` looks for but
  -- the time. It is a table from the policy of a bucket to the line above it; nil where none may be believed.
  function budget.trusted(ctx)
    if not ctx.has_budgets or ctx.rec.version or ctx.was or ctx.resumed_at > 0 then return nil end
    return known(ctx).ways
  end

  -- way_of: the line above a bucket with this policy. It is remembered in `ways`, which may be nil.
  function budget.way_of(ctx, p, ways)
    local line = above(ctx, p.parent)
    local all = ctx.memory.budgets
    if ways and ways == all.ways then
      if all.way_count >= KNOWN_MOST then all.ways, all.way_count = {}, 0 end
      all.ways[p], all.way_count = line, all.way_count + 1
    end
    return line
  end

  -- terms_of: what is asked of an open budget with this policy at each job: one table for all budgets of an entry, for there may be thousands,
  -- and what makes a dispatch slow is how much memory it goes through.
  --   makes_up, step   the lateness that it may make up for, and its interval where that is whole      weight   its own, at the one above
  local function terms_of(p)
    local source = p.made_of or p
    local terms = source.terms
    if not terms or terms.makes_up ~= p.catch_up_us then
      terms = { makes_up = p.catch_up_us, step = p.part == 0 and p.step, weight = p.weight }
      source.terms = terms
    end
    return terms
  end

  -- is_open: the terms of a budget that nothing but its due keeps from letting a job through, and of which nothing but that due changes with one;
  -- false: it is no such budget. It is found out once, and forgotten where its policy, its brake, its place or its turn change.
  function budget.is_open(ctx, b)
    if b.is_open ~= nil then return b.is_open end
    local p, place = b.p, b.place
    local is_open = p ~= nil and p.count ~= nil and not (p.paused or p.refused or p.concurrency or p.quotas or p.job or b.brake) and b.resumed_at == 0
      and (not place or place == ctx.k.rest or b.serving)
    b.is_open = is_open and terms_of(p)
    if is_open then budget.cover(ctx, b) end
    return b.is_open
  end

  -- cover: `covered` says up to which end of its rest a job that passes through an open budget leaves nothing to write: that is what is stored.
  function budget.cover(ctx, b)
    b.covered = b.place == ctx.k.rest and b.stands == b.place and not b.is_stored and b.stands_at or 0
  end

  -- serves: the turn of a budget begins, picked with this end (nil: by nobody), or is over.
  function budget.serves(b, is, ends)
    b.serving, b.ends, b.is_open = is, ends, nil
  end

  -- ---- shares ----

  -- arrives: a child that had no work has some: one that was away for long enough is as good as new.
  function budget.arrives(ctx, parent, id)
    local b = budget.get(ctx, parent)
    local tag, shares = b.tags[id], ctx.memory.budgets.shares
    if tag and share.is_forgotten(tag, b.now, b.shares.largest) then
      b.tags[id], shares.tag_count = nil, shares.tag_count - 1
    end
  end

  -- end_of: the end of the next job of a child.
  function budget.end_of(ctx, b, id, p)
    return share.end_of(b.tags[id], b.now, p.weight, b.shares.largest)
  end

  -- ---- what keeps a job from leaving ----

  -- met_by: the due that a job meets at the i-th of the budgets above it: its own, but what waited by order was not late. It may make
  -- up for no more than its catch-up, and one without a rate for nothing.
  local function met_by(ctx, list, i)
    local b = list[i]
    local due = max(b.due, b.resumed_at)
    for k = i + 1, #list do
      local resumed_at = list[k].resumed_at
      if resumed_at > due then due = max(due, min(resumed_at, ctx.now)) end -- what is still to come is the place of that one
    end
    return max(due, b.p.count and ctx.now - brake.catch_up_us(b.p, b.brake, list[i + 1], ctx.now) or ctx.now)
  end

  budget.met_by = met_by

  -- blocked: which of the budgets above keeps a job from leaving now: the nearest one; nil: none does.
  function budget.blocked(ctx, parent)
    local list = above(ctx, parent)
    for i, b in ipairs(list) do
      if not b.p or b.p.paused or slots.is_full(ctx, b.id, b.p) then return b end
      if met_by(ctx, list, i) > ctx.now then return b end
      local has_work = b.place and b.place ~= ctx.k.rest
      if has_work and not b.serving then return b end
    end
  end

  -- eta_ms: when the n-th job of a bucket could leave, were it for the budgets above alone; siblings are left out. The second reply is the
  -- id of the one that decides.
  function budget.eta_ms(ctx, parent, n)
    local list, latest, decides = above(ctx, parent), 0, parent
    for i, b in ipairs(list) do
      local at = b.p and max(met_by(ctx, list, i), ctx.now)
      local eta = at and (b.p.count and rate.eta_ms(b.p, at, ctx.now, n) or ceil((at - ctx.now) / 1000)) or 0
      if eta > latest then latest, decides = eta, b.id end
    end
    return latest, decides
  end
end
