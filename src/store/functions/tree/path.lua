-- needs: base, context.trace, limits.constraints, limits.slots, pace.paid, pace.rate, pace.share, tree.budget
-- The path of a job: whether the budgets above its bucket admit it, and what each of them is charged after it has left.
--
-- A *path* is the budgets above a node, nearest first (`budget.ancestors`). Most budgets are open (`budget.is_open`):
-- for an open budget only its due is compared. Every job inside a budget runs this code, so it does nothing that only
-- some jobs need.

local path = {}
do
  local after, is_open, change, AHEAD_US = rate.after, budget.is_open, budget.change, budget.AHEAD_US

  -- admits_each: `path.admits` for a path that is not open.
  local function admits_each(ctx, ancestors, due)
    local now, rested, resumed_at, eligible_at = ctx.now, ctx.k.rest, 0, due
    for i = #ancestors, 1, -1 do
      local b = ancestors[i]
      local p, d = b.p, b.due
      if not p or p.paused or b.state and b.state ~= rested and not b.serving then return nil end
      if p.concurrency and slots.is_full(ctx, b.id, p) then return nil end
      if b.resumed_at > resumed_at then resumed_at = b.resumed_at end
      if d < resumed_at then d = resumed_at end
      if d > now then return nil end
      if d > eligible_at then eligible_at = d end
    end
    if due < resumed_at then due = resumed_at end
    return eligible_at, due
  end

  -- admits: whether a job of a bucket that is due may leave through a path. Replies the eligible time of the job (the
  -- latest due of bucket and path) and the due of the bucket, which is later after a pause. Replies nil where a budget
  -- does not admit it.
  function path.admits(ctx, ancestors, due)
    local now, eligible_at = ctx.now, due
    for i = 1, #ancestors do
      local b = ancestors[i]
      if not b.is_open and not is_open(ctx, b) then return admits_each(ctx, ancestors, due) end
      local d = b.due
      if d > eligible_at then
        if d > now then return nil end
        eligible_at = d
      end
    end
    return eligible_at, due
  end

  -- is_blocked: whether a budget of the path above a node with this parent keeps a job from leaving now.
  function path.is_blocked(ctx, parent)
    return path.admits(ctx, budget.ancestors(ctx, parent), 0) == nil
  end

  -- admits_open: the latest due of a bucket and of a path whose budgets are all known to be open. It may lie in the
  -- future. Nil where a budget is not known to be open.
  function path.admits_open(ancestors, due)
    for i = 1, #ancestors do
      local b = ancestors[i]
      if not b.is_open then return nil end
      local d = b.due
      if d > due then due = d end
    end
    return due
  end

  -- resume: raise the dues of a path that is not open to `resumed_at`, before they are charged. Time in a pause is not
  -- lateness.
  local function resume(ancestors)
    local resumed_at = 0
    for i = #ancestors, 1, -1 do
      local b = ancestors[i]
      if b.resumed_at > resumed_at then resumed_at = b.resumed_at end
      if b.due < resumed_at and b.p.count then b.due = resumed_at end
    end
  end

  -- charge: charge one budget that is not open, and its constraints. `up` is the budget above it. Its rate takes the
  -- job for what the bucket was charged.
  local function charge(ctx, b, up, cost, charged)
    local p, constraint = b.p, b.constraint
    local from = ctx.now - constraints.catch_up_us(p, constraint, up, ctx.now)
    local units, credit = p.ignores_cost and 1 or charged, nil
    if not constraint and p.count and (units > 1 or p.job) then
      constraint = constraints.new(b.id)
      b.constraint, b.is_open = constraint, nil
    end
    if constraint then
      b.resumed_at = max(b.resumed_at, constraints.charge(ctx, constraint, p, b.serving or false, cost, b.resumed_at))
    end
    if not p.count then return end
    if b.due < from then b.due = from end
    units, credit = constraints.price(constraint, p, units, ctx.now)
    b.due = constraint and constraints.pay(ctx, constraint, p, b.due, units, from, credit) or after(p, b.due)
  end

  -- finish_after: the finish tag of a child after a job that was charged so much. `finish` is the tag that a job of
  -- cost 1 would give it.
  local function finish_after(b, p, finish, charged)
    local units = paid.units(b.p, charged)
    share.count(b.shares, units, units / p.weight)
    return finish + (units - 1) / p.weight
  end

  -- charge_each: `path.charge` for a path that is not open, or for a job that costs more than 1.
  local function charge_each(ctx, ancestors, id, p, finish, cost, charged)
    local shares = ctx.memory.budgets.shares
    resume(ancestors)
    for i = 1, #ancestors do
      local b = ancestors[i]
      charge(ctx, b, ancestors[i + 1], cost or 1, charged or 1)
      local tag = b.tags[id]
      if not tag then shares.tag_count = shares.tag_count + 1 end
      finish = finish or share.finish_of(tag, b.virtual_time, p.weight, b.shares)
      b.tags[id] = finish_after(b, p, finish, charged or 1)
      if finish > b.virtual_time then b.virtual_time = finish end
      if not b.changed then change(ctx, b) end
      id, p, finish = b.id, b.p, b.finish
    end
  end

  -- charge_open: `path.charge` for an open path, for a job of cost 1, where no budget of the path is traced
  -- (context/trace).
  local function charge_open(ctx, ancestors, id, weight, finish)
    local n, at = #ancestors, ctx.now
    for i = 1, n do
      local b = ancestors[i]
      local terms, d, now, tags = b.is_open, b.due, b.virtual_time, b.tags
      local makes_up, step = terms.makes_up, terms.step
      if d < at - makes_up then d = at - makes_up end
      if step then d = d + step else d = after(b.p, d) end
      b.due = d
      local tag, mean = tags[id], b.shares.mean
      if mean then share.count(b.shares, 1, 1) end
      if not tag then
        local shares = ctx.memory.budgets.shares
        shares.tag_count = shares.tag_count + 1 -- share.is_full limits this count
      end
      if not finish then -- the same as share.finish_of
        if not tag then
          mean = mean or 1
          finish = now - mean + 2 * mean / weight
        else
          if tag < now - 1 then tag = max(tag, now - (b.shares.largest or 1)) end
          finish = tag + 1 / weight
        end
      end
      tags[id] = finish
      if finish > now then b.virtual_time = finish end
      local rests_till, covered = d + makes_up, b.covered
      if (rests_till > covered or rests_till < covered - AHEAD_US) and not b.changed then change(ctx, b) end
      if i < n then id, weight, finish = b.id, terms.weight, b.finish end
    end
  end
  path.charge_open = charge_open

  -- charge: charge a path for a job that has left through it: the due of each budget, and the finish tag of each child
  -- (pace/share). `p` is the policy of the node. `finish` is the finish tag with which the node was granted its turn,
  -- nil where it was not granted one. `cost` is nil for a job of cost 1 that the bucket was charged 1 for (`charged`).
  function path.charge(ctx, ancestors, id, p, finish, cost, charged)
    local watched = ctx.memory.watched
    if watched then
      for i = 1, #ancestors do trace.note(watched.counts, ancestors[i].id, 1) end
    end
    for i = 1, #ancestors do
      if cost or not ancestors[i].is_open then return charge_each(ctx, ancestors, id, p, finish, cost, charged) end
    end
    charge_open(ctx, ancestors, id, p.weight, finish)
  end

  -- is_told: whether a limit was told to a budget of a path: then its jobs in flight are counted.
  function path.is_told(ancestors)
    for i = 1, #ancestors do
      local constraint = ancestors[i].constraint
      if constraint and constraint.told then return true end
    end
    return false
  end

  -- limited: the ids of the nodes of a bucket's chain whose jobs in flight are counted: those with a `concurrency` or
  -- a told limit. A job that leaves takes a slot of each.
  function path.limited(ctx, name, p)
    local own = ctx.has_told and constraints.of(ctx, name, p)
    local ids = { (p.concurrency or own and own.told) and name or nil }
    for _, b in ipairs(p.parent and budget.ancestors(ctx, p.parent) or {}) do
      if b.p and b.p.concurrency or b.constraint and b.constraint.told then ids[#ids + 1] = b.id end
    end
    return ids
  end
end
