-- needs: base
-- Shares: in which order the children of a budget take turns when all of them want to. Nothing here calls Redis.
--
-- Time is counted in jobs of the budget, not in seconds: its `now` is the highest end that was served. A child has a `tag`, which
-- grows with each of its jobs by one step, 1/weight; the end of its next job is its tag and one step more. The budget serves the
-- child with the lowest end. This is start-time fair queueing (Goyal, Vin, Cheng 1996) with ends instead of starts, as
-- self-clocked fair queueing has them (Golestani 1994). With a job that costs more than 1 the tag grows by as much more (pace/paid): a dear job
-- is paid after. `largest` is the largest such step so far, nil: none was longer than one job.
--
-- Tags, and the `now` of a budget without work, are nowhere but in memory: where that is lost all children begin anew. They outlive what
-- else is remembered of a budget, for where jobs leave seconds apart each call begins with what is stored. So does
-- `rests_till`, until when a budget really rests; `stored_till` is the later time that Redis has (tree/stand).

local share = {}
do
  local BUDGETS_MOST = 50000 -- of which tags are remembered
  local TAGS_MOST = 200000   -- of all of them together

  -- none: the memory of shares, empty. is_full: whether it knows more than it should, and is to be begun anew.
  function share.none() return { of = {}, count = 0, tag_count = 0 } end
  function share.is_full(memory) return memory.count > BUDGETS_MOST or memory.tag_count > TAGS_MOST end

  -- known: the tags of a budget's children, and the now that they belong to. A stored now that is behind it was written by a server that
  -- knows nothing of these tags.
  function share.known(memory, id, stored_now)
    local it = memory.of[id]
    if it and (not stored_now or it.now <= stored_now) then return it end
    if not it then memory.count = memory.count + 1 end
    for _ in pairs(it and it.tags or {}) do memory.tag_count = memory.tag_count - 1 end
    it = { now = stored_now or 0, tags = {} }
    memory.of[id] = it
    return it
  end

  -- rest_ends: when the rest of a budget without work ends. Its due says so as long as it has a rate: a job that passes changes nothing else.
  function share.rest_ends(b)
    local p = b.p
    return p and p.count and b.due > 0 and b.due + p.catch_up_us or b.at
  end

  -- keep: a budget is about to be forgotten: what stays known of it. Of one that changed, and of which that was not written, only what is stored is
  -- believed.
  function share.keep(b)
    local it, is_written = b.shares, not b.changed
    if is_written or not b.is_stored then it.now = b.now end
    local rests = is_written and not b.is_stored and b.place and b.place == b.stands
    it.rests_till, it.stored_till = rests and share.rest_ends(b) or nil, rests and b.stands_at or nil
  end

  -- rests_till: until when a budget rests of which this time is stored. The server that stored it knows the real end (tree/stand). Any other one
  -- believes the time, without its half of a microsecond.
  function share.rests_till(it, stored)
    return it.stored_till == stored and it.rests_till or floor(stored)
  end

  -- step: how far the tag of a child grows with a job.
  function share.step(weight) return 1 / weight end

  -- end_of: the end of a child's next job. `tag` is nil where nothing is known of it: then it comes in behind one job of each.
  -- One that comes back has its own tag, but is not let through more than one job for the time that it was away.
  function share.end_of(tag, now, weight, largest)
    local step = 1 / weight
    if not tag then return now - 1 + 2 * step end
    return max(tag, now - (largest or 1)) + step
  end

  -- is_forgotten: whether a child without work is one of which nothing is known.
  function share.is_forgotten(tag, now, largest) return now - tag > (largest or 1) end
end
