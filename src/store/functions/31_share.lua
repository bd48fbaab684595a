-- Shares: in which order the children of a budget take turns when all of them want to. Nothing here calls Redis.
--
-- Time is counted in jobs of the budget, not in seconds: its `now` is the highest end that was served. A child has a `tag`, which
-- grows with each of its jobs by one step, 1/weight; the end of its next job is its tag and one step more. The budget serves the
-- child with the lowest end. This is start-time fair queueing (Goyal, Vin, Cheng 1996) with ends instead of starts, as
-- self-clocked fair queueing has them (Golestani 1994). When jobs have costs, a step will be longer for a dear one.

local share = {}
do
  -- step: how far the tag of a child grows with a job.
  function share.step(weight) return 1 / weight end

  -- end_of: the end of a child's next job. `tag` is nil where nothing is known of it: then it comes in behind one job of each.
  -- One that comes back has its own tag, but is not let through more than one job for the time that it was away.
  function share.end_of(tag, now, weight)
    local step = 1 / weight
    if not tag then return now - 1 + 2 * step end
    return max(tag, now - 1) + step
  end

  -- is_forgotten: whether a child without work is one of which nothing is known.
  function share.is_forgotten(tag, now) return now - tag > 1 end
end
