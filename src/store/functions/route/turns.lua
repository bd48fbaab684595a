-- needs: base
-- Turns: in which order the buckets that are held for a route let out a job each. The one whose last job left longest
-- ago is first. What is remembered of them is part of the room of their route (route/room).

local turns = {}
do
  local ANEW_US = 1000000 -- after so long without a held bucket nothing is known of their turns
  local LEFTS_MOST = 20000 -- buckets whose last turn is remembered
  local APART = 1000 -- turns in a row whose order shows in the ranks, in us

  -- begin: held buckets are to have turns now.
  function turns.begin(ctx, r)
    if ctx.now - r.turned_us > ANEW_US or ctx.now < r.turned_us then
      r.lefts, r.orders, r.left_count, r.turns = nil, nil, 0, 0
    end
    r.turned_us = ctx.now
  end

  -- knows_turns: whether this room knows of buckets that had a turn since buckets are held, with no second without any.
  local function knows_turns(ctx, r)
    return r and r.lefts and ctx.now >= r.turned_us and ctx.now - r.turned_us <= ANEW_US
  end

  -- rank_of: the rank of a bucket among the held ones: when its last job left, or its first one came. That is known of
  -- buckets that had a turn; for others it is the due.
  function turns.rank_of(ctx, s)
    local r = ctx.memory.rooms[s.p.route]
    local left_us = knows_turns(ctx, r) and r.lefts[s.bucket]
    if not left_us then return min(s.due, ctx.now) end
    -- A job that left since then, because its route took more than the held ones, has moved the due on. Those that left
    -- together keep the order of their turns, a microsecond apart.
    local apart = APART - r.orders[s.bucket] % APART
    return max(left_us, min(s.due - s.p.interval_us, ctx.now)) - apart
  end

  -- in_order: put the due nodes of a call, node and due by turns, that have one due in the order of their last turns,
  -- first those that had none. By their names, the first one would always get what its route takes besides the turns.
  function turns.in_order(ctx, due)
    local known, is_any = {}, false
    for _, r in pairs(ctx.memory.rooms) do
      if knows_turns(ctx, r) then
        local orders = r.orders
        known[#known + 1] = orders
        for i = 1, #due, 2 do is_any = is_any or orders[due[i]] ~= nil end
      end
    end
    if not is_any then return end
    local function last_turn(name)
      local turn = 0
      for i = 1, #known do turn = max(turn, known[i][name] or 0) end
      return turn
    end
    for i = 3, #due, 2 do -- an insertion sort: most are in order
      local one, at, to = due[i], due[i + 1], i
      local turn = due[to - 1] == at and last_turn(one)
      while to > 1 and due[to - 1] == at and last_turn(due[to - 2]) > turn do
        due[to], to = due[to - 2], to - 2
      end
      due[to] = one
    end
  end

  -- note_grant: a held bucket of this rank has its turn.
  -- restore_rank: no job of it left, because a budget above does not admit it, or its jobs were dropped at their turn:
  -- it keeps its rank, or it would fall behind the others each time.
  -- forget_rank: a bucket without work has some.
  function turns.note_grant(ctx, r, name, rank)
    if not r.lefts or r.left_count >= LEFTS_MOST then r.lefts, r.orders, r.left_count = {}, {}, 0 end
    if not r.lefts[name] then r.left_count = r.left_count + 1 end
    r.turns = r.turns + 1
    r.lefts[name], r.orders[name] = ctx.now, r.turns
    if not r.ranks then r.ranks = {} end
    r.ranks[name] = rank
  end

  function turns.restore_rank(r, name)
    local rank = r.ranks and r.ranks[name]
    if rank and r.lefts[name] then r.lefts[name] = rank end
  end

  function turns.forget_rank(ctx, name, p)
    local r = ctx.held ~= '' and ctx.memory.rooms[p.route]
    if r and r.lefts and r.lefts[name] then
      r.lefts[name], r.orders[name], r.left_count = nil, nil, r.left_count - 1
    end
  end
end
