-- needs: base, jobs.slots, pace.brake, pace.paid, pace.rate, tree.budget, tree.share, view.trace
-- The path of a job: whether the budgets above its bucket admit it, and what each of them is charged when it has left.
--
-- A *line* is the budgets above a node, the nearest first (`budget.above`). Most are open (`budget.is_open`), and all that is asked of one
-- that is open is its due. This is the path of every job inside a budget: what is not needed for each of them is kept out of it.

local path = {}
do
  local after, is_open, change, AHEAD_US = rate.after, budget.is_open, budget.change, budget.AHEAD_US

  -- admits_each: `admits` of a line that is not open.
  local function admits_each(ctx, line, due)
    local now, rested, resumed_at, eligible_at = ctx.now, ctx.k.rest, 0, due
    for i = #line, 1, -1 do
      local b = line[i]
      local p, d = b.p, b.due
      if not p or p.paused or b.place and b.place ~= rested and not b.serving then return nil end
      if p.concurrency and slots.is_full(ctx, b.id, p) then return nil end
      if b.resumed_at > resumed_at then resumed_at = b.resumed_at end
      if d < resumed_at then d = resumed_at end
      if d > now then return nil end
      if d > eligible_at then eligible_at = d end
    end
    if due < resumed_at then due = resumed_at end
    return eligible_at, due
  end

  -- admits: whether a job of a bucket that is due may leave through a line: the latest due of its chain, and its bucket's own, which may be
  -- later by now; nil where something keeps it.
  function path.admits(ctx, line, due)
    local now, eligible_at = ctx.now, due
    for i = 1, #line do
      local b = line[i]
      if not b.is_open and not is_open(ctx, b) then return admits_each(ctx, line, due) end
      local d = b.due
      if d > eligible_at then
        if d > now then return nil end
        eligible_at = d
      end
    end
    return eligible_at, due
  end

  -- admits_open: the latest due of a line that is known to be open, and of a bucket, which may be still to come; nil where it is not known.
  function path.admits_open(line, due)
    for i = 1, #line do
      local b = line[i]
      if not b.is_open then return nil end
      local d = b.due
      if d > due then due = d end
    end
    return due
  end

  -- go_on: what waited by order was not late: the dues of a line that is not open, before they are charged.
  local function go_on(line)
    local resumed_at = 0
    for i = #line, 1, -1 do
      local b = line[i]
      if b.resumed_at > resumed_at then resumed_at = b.resumed_at end
      if b.due < resumed_at and b.p.count then b.due = resumed_at end
    end
  end

  -- charge: the due of a budget that is not open, and its brakes. `up` is the one above it.
  local function charge(ctx, b, up, cost)
    local p, br = b.p, b.brake
    local from = ctx.now - brake.catch_up_us(p, br, up, ctx.now)
    local pays_for = p.ignores_cost and 1 or cost
    if not br and p.count and (pays_for > 1 or p.job) then
      br = brake.fresh(b.id)
      b.brake, b.is_open = br, nil
    end
    if br then b.resumed_at = max(b.resumed_at, brake.charge(ctx, br, p, b.serving or false, cost, b.resumed_at)) end
    if not p.count then return end
    if b.due < from then b.due = from end
    b.due = br and brake.pay(ctx, br, p, b.due, pays_for, from) or after(p, b.due)
  end

  -- turn_of: the tag of a child after a job of this cost with this end, in a budget with these shares.
  local function turn_of(b, p, ends, cost)
    local more = (paid.units(b.p, cost) - 1) / p.weight
    local step = more + 1 / p.weight
    if step > (b.shares.largest or 1) then b.shares.largest = step end
    return ends + more
  end

  -- pays_each: `charge` of a line that is not open, or for a job that costs more than 1.
  local function pays_each(ctx, line, id, p, ends, cost)
    local shares = ctx.memory.budgets.shares
    go_on(line)
    for i = 1, #line do
      local b = line[i]
      charge(ctx, b, line[i + 1], cost or 1)
      local tag = b.tags[id]
      if not tag then shares.tag_count = shares.tag_count + 1 end
      ends = ends or share.end_of(tag, b.now, p.weight, b.shares.largest)
      b.tags[id] = cost and turn_of(b, p, ends, cost) or ends
      if ends > b.now then b.now = ends end
      if not b.changed then change(ctx, b) end
      id, p, ends = b.id, b.p, b.ends
    end
  end

  local new_tags = 0 -- those that `charge_open` made, and nobody has counted yet

  -- count_tags: the children that became known since the last time are counted, for too many are not remembered.
  function path.count_tags(ctx)
    if new_tags == 0 then return end
    local shares = ctx.memory.budgets.shares
    shares.tag_count, new_tags = shares.tag_count + new_tags, 0
  end

  -- charge_open: `charge` of a line that is open, for a job of cost 1, where nobody looks at what passes through its budgets.
  local function charge_open(ctx, line, id, weight, ends)
    local n, at = #line, ctx.now
    for i = 1, n do
      local b = line[i]
      local terms, d, now, tags = b.is_open, b.due, b.now, b.tags
      local makes_up, step = terms.makes_up, terms.step
      if d < at - makes_up then d = at - makes_up end
      if step then d = d + step else d = after(b.p, d) end
      b.due = d
      local tag = tags[id]
      if not tag then new_tags = new_tags + 1 end
      if not ends then -- as share.end_of has it
        if not tag then
          ends = now - 1 + 2 / weight
        else
          if tag < now - 1 then tag = max(tag, now - (b.shares.largest or 1)) end
          ends = tag + 1 / weight
        end
      end
      tags[id] = ends
      if ends > now then b.now = ends end
      local rests_till, covered = d + makes_up, b.covered
      if (rests_till > covered or rests_till < covered - AHEAD_US) and not b.changed then change(ctx, b) end
      if i < n then id, weight, ends = b.id, terms.weight, b.ends end
    end
  end
  path.charge_open = charge_open

  -- charge: a job of a node with this policy has left through a line that it has asked: the dues of the line, and the tag of each child in it
  -- (tree/share). `ends` is the end with which the node was picked; nil: it was not. `cost` is nil for a job of cost 1.
  function path.charge(ctx, line, id, p, ends, cost)
    local watched = ctx.memory.watched
    if watched then
      for i = 1, #line do trace.note(watched.counts, line[i].id, 1) end
    end
    for i = 1, #line do
      if cost or not line[i].is_open then return pays_each(ctx, line, id, p, ends, cost) end
    end
    charge_open(ctx, line, id, p.weight, ends)
    path.count_tags(ctx)
  end

  -- limited: the nodes of a bucket's chain of which a job that leaves takes a slot.
  function path.limited(ctx, name, p)
    local ids = {}
    if p.concurrency then ids[1] = name end
    for _, b in ipairs(p.parent and budget.above(ctx, p.parent) or {}) do
      if b.p and b.p.concurrency then ids[#ids + 1] = b.id end
    end
    return ids
  end
end
