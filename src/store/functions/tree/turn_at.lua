-- needs: base, policy.chain, route, route.room, state.waiting, tree.budget
-- When a bucket has its turn at its route, about, for people: how many jobs of others leave before, and how fast
-- workers take them.

local turn_at = {}
do
  local READ_MOST = 100 -- nodes of a line that are read: all others count as a bucket

  -- round_of: how many turns a round of the line of a route has, and how many of them belong to nodes before the place
  -- `ahead`.
  local function round_of(ctx, name, ahead)
    local all, before, key = waiting.held(ctx, name), ahead, waiting.route_key(ctx, name)
    if all == 0 then return 0, 0 end
    for i, one in ipairs(waiting.front(ctx, key, READ_MOST)) do
      local more = chain.budget_of(one.id) and budget.turns(ctx, budget.get(ctx, one.id), name) - 1 or 0
      all = all + more
      if i <= ahead then before = before + more end
    end
    return all, before
  end

  -- held: how many buckets wait for a route: of a budget in its line as many as it has turns.
  function turn_at.held(ctx, name) return (round_of(ctx, name, 0)) end

  -- ahead: how many jobs leave for the route of a bucket before its next one, about, and how many leave in a round, in
  -- which each node has its turns. A budget has as many as children wait there.
  function turn_at.ahead(ctx, s)
    local name, p = s.p.route, s.p
    local key = waiting.route_key(ctx, name)
    if s.state == key then
      local all, before = round_of(ctx, name, waiting.ahead(ctx, key, s.bucket, s.stored_due))
      return before, all
    end
    local all = round_of(ctx, name, 0)
    local of = waiting.budget(ctx, s.state)
    if not p.parent or not of then return all, all end
    local siblings = budget.turns(ctx, budget.get(ctx, of), name)
    return floor(all * waiting.ahead(ctx, s.state, s.bucket, s.stored_due) / siblings), all
  end

  -- route: for how long a bucket waits for its turn at its route, about, and how long a round takes, in us; 0 where
  -- nothing waits for the route, or the pace of its workers is not known.
  function turn_at.route(ctx, s)
    local name = s.p.route
    if not route.is_held(ctx, name) then return 0, 0 end
    local taken, over_us = room.pace_of(ctx, name)
    if not taken or taken == 0 then return 0, 0 end
    local before, all = turn_at.ahead(ctx, s)
    return floor(before * over_us / taken), floor(all * over_us / taken)
  end
end
