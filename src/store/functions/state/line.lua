-- needs: base, policy.chain, route, route.room, state.waiting
-- The line of a route: nodes without a budget above them that wait for a route that takes no more (route/room): buckets
-- that are due, and budgets below which jobs for it wait. A budget may stand there before its due: it would lose each
-- turn that comes shortly before. The route serves its line by self-clocked fair queueing, as a budget its children
-- (pace/share), and passes over what is not due.
--
-- The virtual time of a line is the highest finish tag that was served, and no less than the lowest tag in the line
-- less 1. A bucket has 1 turn in each round, a budget as many as children of it wait for the route (`turns`), so its
-- tag grows by 1/turns with each. Tags exist only in memory, in the room of the route: `tags`, `tag_count`, `time`, and
-- `places`: the ranks of budgets that have not had their turn.
-- They are forgotten where nothing stood in the line for a second.

local line = {}
do
  local ANEW_US = 1000000 -- after so long without a line nothing is known of its tags
  local TAGS_MOST = 20000 -- nodes whose tags or places are remembered

  -- begin: the room of a route, with the virtual time of its line as it is now.
  function line.begin(ctx, name)
    local r, now = room.known(ctx, name), ctx.now
    if r.line_call == ctx.calls then return r end
    local is_over = now - r.turned_us > ANEW_US or now < r.turned_us
    if not r.tags or is_over or r.tag_count > TAGS_MOST then
      r.tags, r.places, r.tag_count = {}, {}, 0
    end
    if is_over then r.time = 0 end
    local first = route.is_held(ctx, name) and waiting.first(ctx, waiting.route_key(ctx, name))
    if first then r.time = max(r.time, first.rank - 1) end
    r.line_call, r.turned_us = ctx.calls, now
    return r
  end

  -- tag_after: the tag of a node of a room, `step` further on.
  local function tag_after(r, id, step)
    local tag = r.tags[id]
    return (tag and max(tag, r.time - 1) or r.time) + step
  end

  -- remember: a node of a room has this tag from now on, and no place that it may come back to.
  local function remember(r, id, tag)
    if not r.tags[id] and not r.places[id] then r.tag_count = r.tag_count + 1 end
    r.tags[id], r.places[id] = tag, nil
  end

  -- finish_of: the finish tag of the next turn of a node at a route.
  function line.finish_of(ctx, name, id, turns) return tag_after(line.begin(ctx, name), id, 1 / turns) end

  -- join: a node joins the line of a route; `rank` is nil where it is to be computed. A budget that left before
  -- it had a turn comes back to its place: else one of a low rate, which is away most of the time, would never have
  -- one.
  function line.join(ctx, name, id, due, turns, rank)
    local is_budget, r = chain.budget_of(id), line.begin(ctx, name)
    rank = rank or is_budget and r.places[id] or tag_after(r, id, 1 / turns)
    route.hold(ctx, name)
    local key = waiting.route_key(ctx, name)
    if not is_budget then return waiting.join(ctx, key, id, due, rank) end
    if not r.tags[id] and not r.places[id] then r.tag_count = r.tag_count + 1 end
    r.places[id] = rank
    waiting.place(ctx, key, id, due, rank)
  end

  -- charge: n jobs of a budget have left for a route outside of its line, because the route took more than what was due
  -- there. They count as turns: else what is free would always go to the same budget.
  function line.charge(ctx, name, id, turns, n)
    local r = room.known(ctx, name)
    if r.tag_count == 0 or ctx.now - r.turned_us > ANEW_US or ctx.now < r.turned_us then return end
    remember(r, id, tag_after(r, id, n / turns))
  end

  -- served: a job of a node that stood in the line with this rank has left for the route.
  function line.served(ctx, name, id, rank)
    local r = line.begin(ctx, name)
    remember(r, id, rank)
    r.time = max(r.time, rank)
  end
end
