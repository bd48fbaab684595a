-- Budgets: paced nodes without a queue, shared by the buckets and budgets below them. What is true of one, what keeps a job from
-- leaving through a chain of them, and where they wait. What a job that leaves costs each is in 47_toll.
--
-- A budget has work while something waits for a share of it. Then it stands in one place, as a bucket does:
--   k.schedule             it waits for its own due, or may go now
--   k.paused               an operator stopped it
--   k.refused              its own budgets cannot be found, or it is none any more
--   k.full                 as many jobs below it are in flight as may be
--   k.wait .. <budget>     it waits for its share of the budget above it
-- and without work:
--   k.rest                 until nothing that is known of it makes a difference: its due is over by its catch-up
-- At rest its score says when that is, so its due is that less its catch-up. Of one that has work <prefix>:budgets keeps
-- "<due> <went_on> <now> <at> <place>", the place without its prefix:
--   due       when its next job may leave
--   went_on   when it last went on after a wait by order: that wait is no lateness of it, nor of anything below it. While a brake holds
--             it (43_brake) that is when it will go on
--   now       of its waiting set (31_share)
--
-- The state `b` of a budget: id, p (its policy, nil where none of the configuration is meant), due, went_on, now, place, at (its score
-- there), stands, stands_at (the set in which Redis has it, waiting sets aside, and the score there: it may move more than once in a
-- call), brake (43_brake; nil: none), shares and tags (31_share: the tags of its children), serving (its turn has come: what waits for it is
-- no obstacle to what it serves), changed, is_open (see budget.is_open; nil: to be found out). It is remembered from call to call as long as no
-- other server can have written another one.

local budget = {}
do
  local digits, policy_of, key_of = base.digits, record.policy_of, waiting.key

  local STATE = '^(%d+) (%d+) (%S+) (%d+) (.+)$'
  local KNOWN_MOST = 50000 -- budgets that are remembered, of one prefix

  -- ---- what is known of a budget ----

  local function decode(ctx, id, text, rests_till)
    -- Sixteen fields, all that most budgets ever have: with one more the table has room for 32.
    local b = {
      id = id, p = policy_of(ctx.rec, id), due = 0, went_on = 0, now = 0, at = 0, place = nil, stands = nil, stands_at = 0, shares = nil,
      tags = nil, call = ctx.calls, changed = false, is_open = nil, floor = 0, step = false,
    }
    local due, went_on, now, at, place
    if text then due, went_on, now, at, place = match(text, STATE) end
    if due then
      b.due, b.went_on, b.now, b.at, b.place = due + 0, went_on + 0, now + 0, at + 0, ctx.k.prefix .. ':' .. place
      b.is_stored = true
    elseif rests_till then
      b.at, b.place = rests_till + 0, ctx.k.rest
    end
    if b.place and not waiting.budget(ctx, b.place) then b.stands, b.stands_at = b.place, b.at end
    b.shares = share.known(ctx.memory.budgets.shares, id, b.is_stored and b.now)
    b.tags = b.shares.tags
    if not b.is_stored then b.now = b.shares.now end
    return b
  end

  local function encode(ctx, b)
    return table.concat({ digits(b.due), digits(b.went_on), base.exact(b.now), digits(b.at), sub(b.place, #ctx.k.prefix + 2) }, ' ')
  end

  -- change: something of a budget is to be written at the end of the call.
  local function change(ctx, b)
    if b.changed then return end
    local list = ctx.memory.budgets.changed
    b.changed, list[#list + 1] = true, b
    ctx.write_budgets = budget.flush
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
    if not b.brake and b.went_on <= ctx.now and not (b.p and b.p.quotas) then return end
    b.is_open = nil
    if b.p and brake.hold_budget(ctx, b, b.p) then change(ctx, b) end
  end

  -- stood_still: the partition of a budget went on after the due of it: that wait is no lateness of it.
  local function stood_still(ctx, b) if b.due > 0 then b.due = ctx.went_on end end

  -- known: the budgets that are remembered. While a change spreads, after a call that only read or that raised, and under another record,
  -- nothing is believed; nor after a while without a drain (38_call).
  local function known(ctx)
    local m = ctx.memory
    local all = m.budgets
    if all and all.call == ctx.calls then return all end
    if not all or share.is_full(all.shares) then
      memory.forget_budgets(m, share.none())
    elseif ctx.prev or ctx.was or all.count > KNOWN_MOST or all.changed[1] or all.rec and all.rec ~= ctx.rec then
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
      if b.due < ctx.went_on then stood_still(ctx, b) end
    end
  end

  -- begin: a call begins with what is remembered of a budget. What operators set may have begun or ended since; else the time is all
  -- that has changed of one that is open.
  local function begin(ctx, b)
    local p = b.p
    b.call = ctx.calls
    if b.due < ctx.went_on then stood_still(ctx, b) end
    if b.is_open and not ctx.rec.version and not ctx.was and b.due <= ctx.now + p.interval_us then
      b.floor = ctx.now - p.catch_up_us
      return
    end
    b.is_open, b.p = nil, policy_of(ctx.rec, b.id)
    if b.brake and brake.put_right(ctx, b.brake) then change(ctx, b) end
    if p ~= b.p then ctx.memory.budgets.lines = {} end
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
    local of, ids, seen = known(ctx).of, {}, {}
    for i = 1, #names do
      local p = policy_of(ctx.rec, names[i])
      local id = p and not p.refused and p.parent or chain.budget_of(names[i]) and names[i]
      while id and not of[id] and not seen[id] do
        seen[id], ids[#ids + 1] = true, id
        local up = policy_of(ctx.rec, id)
        id = up and up.parent
      end
    end
    if ids[1] then budget.load(ctx, ids) end
  end

  -- above: the budgets above a node that has this parent, the nearest first: its line. It is remembered as they are.
  local function above(ctx, parent)
    local all, calls = ctx.memory.budgets, ctx.calls
    local line = all and all.lines[parent]
    if line and line.call == calls then return line end
    all = known(ctx)
    line = all.lines[parent]
    for i = 1, line and #line or 0 do
      local b = line[i]
      if b.call ~= calls then begin(ctx, b) end
    end
    if not line or all.lines[parent] ~= line then
      local b = budget.get(ctx, parent)
      line = { b, is_open = false, call = 0 }
      while b.p and b.p.parent do
        b = budget.get(ctx, b.p.parent)
        line[#line + 1] = b
      end
      all.lines[parent] = line
    end
    line.call = calls
    return line
  end
  budget.above = above

  -- is_open: whether nothing but its due keeps a budget from letting a job through, and nothing but that due changes with one. It is found
  -- out once, and forgotten where its policy, its brake, its place or its turn change.
  --   floor, step   of one that is open: the earliest due that it is charged for, and its interval where that is whole
  function budget.is_open(ctx, b)
    if b.is_open ~= nil then return b.is_open end
    local p, place = b.p, b.place
    b.is_open = p ~= nil and p.count ~= nil and not (p.paused or p.refused or p.concurrency or p.quotas or p.job or b.brake) and b.went_on == 0
      and (not place or place == ctx.k.rest or b.serving)
    if b.is_open then b.floor, b.step = ctx.now - p.catch_up_us, p.part == 0 and p.step end
    return b.is_open
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
    local due = max(b.due, b.went_on)
    for k = i + 1, #list do
      local went_on = list[k].went_on
      if went_on > due then due = max(due, min(went_on, ctx.now)) end -- what is still to come is the place of that one
    end
    return max(due, b.p.count and ctx.now - brake.catch_up_us(b.p, b.brake, list[i + 1], ctx.now) or ctx.now)
  end

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

  -- ---- places ----

  -- move: a budget stands in another place from now on. Its score there is the due; at rest the time at which it is forgotten.
  local function move(ctx, b, place, at, ends)
    local from, stays = b.place, place == b.place and at == b.at and not ends
    if not stays and waiting.budget(ctx, from) then
      ends = ends or place == from and waiting.ends_of(ctx, from, b.id, b.at)
      waiting.leave(ctx, from, b.id, b.at)
    end
    if not stays and waiting.budget(ctx, place) then waiting.join(ctx, place, b.id, at, ends) end
    b.place, b.at, b.is_open = place, at, nil
    change(ctx, b)
  end

  -- stand: a budget with work stands where it must.
  function budget.stand(ctx, b)
    local list = above(ctx, b.id) -- itself first
    if not b.p or b.p.refused then return move(ctx, b, ctx.k.refused, ctx.now) end
    if b.p.paused then return move(ctx, b, ctx.k.paused, max(b.due, 0)) end
    if slots.is_full(ctx, b.id, b.p) then return move(ctx, b, ctx.k.full, max(b.due, 0)) end
    local due = met_by(ctx, list, 1)
    if due > ctx.now then return move(ctx, b, ctx.k.schedule, due) end
    if b.p.parent and budget.blocked(ctx, b.p.parent) then return budget.wait(ctx, b.p.parent, b, due) end
    move(ctx, b, ctx.k.schedule, due)
  end

  -- wait: a budget waits for its share of the one above.
  function budget.wait(ctx, parent, b, due)
    local up = budget.get(ctx, parent)
    move(ctx, b, key_of(ctx, parent), due, b.goes_first and waiting.FRONT or budget.end_of(ctx, up, b.id, b.p))
    b.goes_first = nil
    budget.has_work(ctx, up)
  end

  -- turn_moves: a budget that waits for its share has its turn so much later, or earlier.
  function budget.turn_moves(ctx, b, step)
    if not waiting.budget(ctx, b.place) then return end
    move(ctx, b, b.place, b.at, waiting.later(waiting.ends_of(ctx, b.place, b.id, b.at), step))
  end

  -- has_work: something waits for a share of a budget: it stands somewhere.
  function budget.has_work(ctx, b)
    if b.place and b.place ~= ctx.k.rest then return end
    if not b.changed and (not b.place or b.at <= ctx.now) then b.due = 0 end -- it rested for long enough
    if b.p and b.p.parent then budget.arrives(ctx, b.p.parent, b.id) end
    if b.brake then brake.has_waiting(ctx, b.brake) end
    budget.stand(ctx, b)
  end

  -- come: a bucket that is due, and that something above keeps from going, waits for its share. Replies its place.
  function budget.come(ctx, s)
    local up = budget.get(ctx, s.p.parent)
    s.ends = s.ends or budget.end_of(ctx, up, s.bucket, s.p)
    budget.has_work(ctx, up)
    return key_of(ctx, s.p.parent)
  end

  -- rest: a budget without work: what is known of it stays until it makes no difference any more. What it waited by order is no lateness
  -- of its next job either.
  local function rest(ctx, b)
    local now, p, rested, place, at = ctx.now, b.p, ctx.k.rest, nil, 0
    if b.went_on ~= 0 and b.went_on <= now then b.due, b.went_on = max(b.due, b.went_on), 0 end
    if p and p.count and b.due + p.catch_up_us > now then place, at = rested, b.due + p.catch_up_us end
    if b.place and b.place ~= rested then return move(ctx, b, place, at) end
    b.place, b.at = place, at
    if not b.changed then change(ctx, b) end
  end

  -- may_go_by_itself: whether nothing of its own keeps a budget from going now.
  function budget.may_go_by_itself(ctx, b)
    if b.is_open then return b.due <= ctx.now end
    if not b.p or b.p.refused or b.p.paused or slots.is_full(ctx, b.id, b.p) then return false end
    return met_by(ctx, above(ctx, b.id), 1) <= ctx.now
  end

  -- take_place: where a budget waits after it was picked: for its next share, if nothing of its own keeps it; one through which no job
  -- has left keeps its turn.
  function budget.take_place(ctx, b, has_left)
    if not waiting.first(ctx, key_of(ctx, b.id)) then return rest(ctx, b) end
    if not budget.may_go_by_itself(ctx, b) then return budget.stand(ctx, b) end
    if has_left or b.goes_first then budget.wait(ctx, b.p.parent, b, met_by(ctx, above(ctx, b.id), 1)) end
  end

  -- settle: a budget that stood somewhere, and whose turn is over or of which something changed: it stands where it must, or rests.
  function budget.settle(ctx, b)
    if waiting.first(ctx, key_of(ctx, b.id)) then budget.stand(ctx, b) else rest(ctx, b) end
  end

  -- go_on: a budget may have a slot free. Replies whether it waited for one and goes on.
  function budget.go_on(ctx, id)
    local b = budget.get(ctx, id)
    if b.place ~= ctx.k.full or b.p and slots.is_full(ctx, id, b.p) then return false end
    b.went_on, b.is_open = max(b.went_on, ctx.now), nil
    budget.settle(ctx, b)
    return true
  end

  -- mend: a budget that waits for a slot stands where it must, though somebody may have deleted that set.
  function budget.mend(ctx, id)
    local b = budget.get(ctx, id)
    if b.place ~= ctx.k.full or pcall_redis('ZSCORE', ctx.k.full, id) then return end -- or the key holds something else
    b.stands = nil
    budget.settle(ctx, b)
  end

  -- put_right: a budget of which anything may have changed: its due is put right when it is read, here its place is.
  function budget.put_right(ctx, id)
    local b = budget.get(ctx, id)
    if not b.place or b.place == ctx.k.rest then return change(ctx, b) end
    local was_stopped = b.place == ctx.k.paused or b.place == ctx.k.full
    if was_stopped and b.p and not b.p.paused and not slots.is_full(ctx, id, b.p) then
      b.went_on, b.is_open = max(b.went_on, ctx.now), nil
    end
    local parent = b.p and not b.p.refused and b.p.parent
    local stays = parent and b.place == key_of(ctx, parent) and budget.may_go_by_itself(ctx, b)
    if not stays then budget.settle(ctx, b) end
  end

  -- flush: write what changed of budgets, before their places are written (44_places).
  -- writes  budgets      cost  at most 2 calls
  function budget.flush(ctx)
    local all, add, gone, rested = ctx.memory.budgets, {}, {}, ctx.k.rest
    local changed = all.changed
    -- Of whom a timed setting ended, and this call is the first to see that: what stored it is gone when the call is over, so nobody else would
    -- put its place right. Each may move the one above, so the list may grow.
    for _, b in ipairs(changed) do
      if b.fresh and b.p.over then budget.put_right(ctx, b.id) end
    end
    for i = 1, #changed do
      local b = changed[i]
      b.shares.now = b.now
      if not b.place or b.place == rested then rest(ctx, b) end
      local place = b.place
      if place and place ~= rested then
        add[#add + 1], add[#add + 2], b.is_stored = b.id, encode(ctx, b), true
        if waiting.budget(ctx, place) then place = nil end
      elseif b.is_stored then
        gone[#gone + 1], b.is_stored = b.id, false
      end
      if place ~= b.stands or b.at ~= b.stands_at then places.note(ctx, b.id, b.stands, place, b.at) end
      b.stands, b.stands_at = place, b.at
      if not b.place then all.of[b.id], all.count, all.lines = nil, all.count - 1, {} end
      if b.fresh then
        bucket.mark_reached(ctx, { bucket = b.id, spreads = b.spreads, p = b.p })
        b.fresh = false
      end
      b.changed = false
    end
    if add[1] then call('HSET', ctx.k.budgets, unpack(add)) end
    if gone[1] then call('HDEL', ctx.k.budgets, unpack(gone)) end
    all.shares.tag_count, ctx.new_tags = all.shares.tag_count + ctx.new_tags, 0
    all.changed, ctx.write_budgets = {}, false -- last: where the above raises, nothing that is remembered is believed
  end
end
