-- needs: base
-- The states of a node (a bucket or a budget), and which state may follow each, as one table. Nothing here calls Redis.
-- docs/engine.md draws the table, and a test enumerates it.
--
--   idle        no work that a call has seen, and nothing is known of it: its next job may leave at once
--   cooling     no work, and its due is in the future; a budget also cools for its catch-up after that
--   scheduled   it has work, and waits for its due or for its turn after that
--   queued      it has work and is due, and waits for its share of the budget above it (self-clocked fair queueing,
--               pace/share)
--   held        it has no budget above it, has work and is due, and no route for which it has jobs takes more
--               (route/room, state/line)
--   blocked     it has work and no slot is free, or it waits for a job of its own that failed
--   paused      it has work, and an operator paused it
--   refused     it has work, and its chain of budgets cannot be resolved
--
-- The events:
--   arrive      work comes: a push, or a retry or delayed job whose time has come; for a budget, a child that waits for
--               it
--   turn        it is due and has its turn, the budget above grants it a turn, or its route takes its next job
--   change      a setting, the configuration, a slow-down or a cost changed; a purge
--   free        a slot is free
--   forget      its due has passed

local transitions = {}
do
  -- The events that may happen to a node in each state. Any other event is a fault: only a node that is scheduled,
  -- queued or held has a turn, only a blocked node gets a slot, and only a cooling node is forgotten.
  transitions.events = {
    idle = { 'arrive', 'change' },
    cooling = { 'arrive', 'change', 'forget' },
    scheduled = { 'arrive', 'turn', 'change' },
    queued = { 'arrive', 'turn', 'change' },
    held = { 'arrive', 'turn', 'change' },
    blocked = { 'arrive', 'change', 'free' },
    paused = { 'arrive', 'change' },
    refused = { 'arrive', 'change' },
  }

  -- After each event but `forget` the state is decided again (`state.decide`, `budget.decide`): the first of these that
  -- is true.
  transitions.decisions = {
    { 'idle', 'no work, and its due has passed' },
    { 'cooling', 'no work, and its due is in the future' },
    { 'refused', 'its chain of budgets cannot be resolved' },
    { 'paused', 'an operator paused it' },
    { 'blocked', 'it has no slot free, or keeps its order and waits for a job that failed' },
    { 'scheduled', 'its due is in the future' },
    { 'queued', 'a budget above does not admit it, other children wait there, or its route takes no more' },
    { 'held', 'it has no budget above it, and its route takes no more' },
    { 'scheduled', 'else: its turn is next' },
  }

  -- successors: the states that may follow an event, in the order of the decisions; nil: the event cannot happen in
  -- this state.
  function transitions.successors(from, event)
    local happens = false
    for _, one in ipairs(transitions.events[from]) do happens = happens or one == event end
    if not happens then return nil end
    if event == 'forget' then return { 'idle' } end
    local list, seen = {}, {}
    for _, one in ipairs(transitions.decisions) do
      if not seen[one[1]] then seen[one[1]], list[#list + 1] = true, one[1] end
    end
    return list
  end

  local known = {} -- "<from> <event>" -> set of states; filled when first needed

  -- check: an event takes a node from one state to another. An impossible transition raises: the caller has a fault,
  -- and writes nothing.
  function transitions.check(id, from, event, to)
    local of = known[from] or {}
    known[from] = of
    local set = of[event]
    if not set then
      set = {}
      for _, one in ipairs(transitions.successors(from, event) or {}) do set[one] = true end
      of[event] = set
    end
    if set[to] then return end
    local fault = 'ERR %s cannot go from %s to %s by %s: a fault of dripd, please report it'
    error({ err = format(fault, id, from, to, event) })
  end
end
