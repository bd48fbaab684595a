-- needs: base
-- Shares: the order in which the children of a budget take turns. Nothing here calls Redis.
--
-- Virtual time is counted in jobs of the budget, not in seconds. The `virtual_time` of a budget is the highest finish
-- tag that it has served. Each child has a `tag`, which grows by 1/weight with each of its jobs. The finish tag of its
-- next job is its tag plus 1/weight. The budget serves the child with the lowest finish tag. This is self-clocked fair
-- queueing (Golestani 1994), a form of start-time fair queueing (Goyal, Vin, Cheng 1996) that serves by finish tags. A
-- job that costs more than 1 raises the tag by what its bucket was charged after it has left (pace/paid). `largest` is
-- the largest such step so far, `mean` a running mean of what jobs were charged; both are nil as long as that was 1.
--
-- Tags, and the `virtual_time` of a budget without work, exist only in memory. Where they are lost, all children begin
-- anew. They are kept when the rest of what is remembered of a budget is dropped: where jobs leave seconds apart, each
-- call begins with what Redis has stored.
-- `rests_till` is kept too: when a budget really stops cooling. `stored_till` is the later time that Redis has
-- (tree/states).

local share = {}
do
  local BUDGETS_MOST = 50000 -- budgets whose tags are remembered
  local TAGS_MOST = 200000 -- tags of all budgets together
  local MEAN_OF = 16 -- jobs

  -- none: an empty memory of shares.
  -- is_full: whether the memory of shares has grown too large. It is then begun anew.
  function share.none() return { of = {}, count = 0, tag_count = 0 } end
  function share.is_full(memory) return memory.count > BUDGETS_MOST or memory.tag_count > TAGS_MOST end

  -- known: the tags of a budget's children, and the virtual time that they belong to. A stored virtual time that is
  -- lower was written by a server that does not have these tags: they are dropped.
  function share.known(memory, id, stored_time)
    local it = memory.of[id]
    if it and (not stored_time or it.virtual_time <= stored_time) then return it end
    if not it then memory.count = memory.count + 1 end
    for _ in pairs(it and it.tags or {}) do memory.tag_count = memory.tag_count - 1 end
    it = { virtual_time = stored_time or 0, tags = {} }
    memory.of[id] = it
    return it
  end

  -- rest_ends: when a budget without work stops cooling. Where it has a rate that follows from its due: a job that
  -- passes changes nothing else.
  function share.rest_ends(b)
    local p = b.p
    return p and p.count and b.due > 0 and b.due + p.catch_up_us or b.at
  end

  -- keep: save what outlives a budget that is about to be dropped from memory. Changes that were not written are not
  -- saved.
  function share.keep(b)
    local it, is_written = b.shares, not b.changed
    if is_written or not b.is_stored then it.virtual_time = b.virtual_time end
    local rests = is_written and not b.is_stored and b.state and b.state == b.stored_state
    it.rests_till, it.stored_till = rests and share.rest_ends(b) or nil, rests and b.stored_at or nil
  end

  -- rests_till: when a cooling budget stops cooling, `stored` being the time that Redis has. The server that stored it
  -- knows the real end (tree/states). Any other server takes the stored time without its half of a microsecond.
  function share.rests_till(it, stored)
    return it.stored_till == stored and it.rests_till or floor(stored)
  end

  -- count: a job was charged so many units, and its child moves on by `step`.
  function share.count(it, units, step)
    if units == 1 and not it.mean then return end
    it.mean = (it.mean or 1) + (units - (it.mean or 1)) / MEAN_OF
    if step > (it.largest or 1) then it.largest = step end
  end

  -- finish_of: the finish tag of a child's next job. `tag` is nil for a child without a known tag: it goes behind one
  -- job of each other child, a mean one. A child that comes back keeps its tag, but gains at most one job for the time
  -- that it was away.
  function share.finish_of(tag, now, weight, it)
    if tag then return max(tag, now - (it.largest or 1)) + 1 / weight end
    local mean = it.mean or 1
    return now - mean + 2 * mean / weight
  end

  -- corrected: the tag of a child whose job cost so many steps more, or less, than its tag was moved by: back to the
  -- virtual time at most, or else corrections that come together would keep all others waiting.
  function share.corrected(tag, now, step) return max(tag + step, min(tag, now)) end

  -- is_forgotten: whether the tag of a child without work has fallen so far behind that it makes no difference.
  function share.is_forgotten(tag, now, largest) return now - tag > (largest or 1) end
end
