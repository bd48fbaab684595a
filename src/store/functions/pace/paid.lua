-- needs: base, pace.rate
-- Payments: what the last job of a node was charged, where that was not one interval. Nothing here calls Redis.
--
-- A job of cost n uses n slots of each `rate` on its path, and is charged after it has left: the next due is n
-- intervals later. Besides, `job_rate` counts each job as one, and the later of both dues decides.
--
-- A payment, `d`:
--   cost               of the last job: no due lies further ahead than that charge
--   unit_due, job_due  when the next job may leave by the rate and by `job_rate`, where there is one; 0: not known
--   needs              the cost of the next job, where a quota has too little left for it
--   largest            the largest cost since the node last cooled down
--   over               when nothing of it needs to be kept any more

local paid = {}
do
  local digits = base.digits

  local LONGEST_US = 366 * 86400000000 -- the most that one job is charged
  paid.LONGEST_US = LONGEST_US
  local NAMES = { 'cost', 'unit_due', 'job_due', 'needs', 'largest', 'over' }

  function paid.new()
    return { cost = 1, unit_due = 0, job_due = 0, needs = 1, largest = 0, over = 0 }
  end

  function paid.encode(d)
    local list = {}
    for i, name in ipairs(NAMES) do list[i] = digits(d[name]) end
    return table.concat(list, ' ')
  end

  function paid.decode(text)
    local d, i = {}, 0
    for number in gmatch(text, '%d+') do
      i = i + 1
      d[NAMES[i] or 'more'] = tonumber(number)
    end
    return d.over and d or nil
  end

  -- expires_at: when nothing of it needs to be kept any more.
  function paid.expires_at(d) return d.over end

  -- after: the due after a job of this cost.
  function paid.after(p, due, cost)
    if cost == 1 then return rate.after(p, due) end
    return min(rate.nth(p, due, cost + 1), due + LONGEST_US)
  end

  -- max_ahead_us: how far ahead the due of a node may lie, with this interval.
  function paid.max_ahead_us(d, p, interval_us)
    local reach = min(LONGEST_US, (d and d.cost or 1) * interval_us)
    return p.job and max(reach, p.job.interval_us) or reach
  end

  -- dues: the dues by the rate and by `job_rate` of a node with this due. Where its due is later than both, because of
  -- a pause or because they are not known, it counts for both.
  function paid.dues(d, due)
    local latest = max(d.unit_due, d.job_due)
    if due > latest then return due, due end
    return min(d.unit_due, due), min(d.job_due, due)
  end

  -- units: how far a job of this cost raises the finish tag of a child (pace/share), in steps of a job of cost 1.
  function paid.units(p, cost)
    if cost == 1 or p.ignores_cost then return 1 end
    if not p.job then return cost end
    return max(cost * p.interval_us, p.job.interval_us) / max(p.interval_us, p.job.interval_us)
  end
end
