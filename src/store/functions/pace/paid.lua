-- needs: base, pace.rate
-- Payments: what the last job of a node was charged, where that was not one interval, and the credit of corrected
-- costs. Nothing here calls Redis.
--
-- A job of cost n uses n slots of each `rate` on its path, and is charged after it has left: the next due is n
-- intervals later. Besides, `job_rate` counts each job as one, and the later of both dues decides.
--
-- A cost is an estimate. Where a worker says what a job really cost, no due moves: the difference, as a time, is the
-- *credit* of the node, negative in debt. Jobs that leave later are charged less, or more, until it is used up: at two
-- seconds of credit half of their cost, at two seconds of debt twice.
--
-- A payment, `d`:
--   cost               what the last job was charged, in units: no due lies further ahead than that charge
--   unit_due, job_due  when the next job may leave by the rate and by `job_rate`, where there is one; 0: not known
--   needs              the cost of the next job, where a quota has too little left for it
--   largest            the largest charge since the node last cooled down
--   over               when nothing of these needs to be kept any more
--   credit             in us
--   keep_till          when the credit is forgotten: an hour after the last job or correction
--   idle_from          since when a node in debt has no work and is past its due; 0: it has, or is not in debt

local paid = {}
do
  local digits = base.digits

  local LONGEST_US = 366 * 86400000000 -- the most that one job is charged
  paid.LONGEST_US = LONGEST_US
  local NAMES = { 'cost', 'unit_due', 'job_due', 'needs', 'largest', 'over', 'credit', 'keep_till', 'idle_from' }

  local HALVES_US = 2000000 -- so much credit halves what a job of this length is charged; such a debt doubles it
  local CREDIT_MOST_US, DEBT_MOST_US = 60000000, 3600000000
  local KEPT_US = 3600000000 -- how long the credit of an idle node is kept

  function paid.new()
    return { cost = 1, unit_due = 0, job_due = 0, needs = 1, largest = 0, over = 0, credit = 0, keep_till = 0,
      idle_from = 0 }
  end

  -- cool: forget what has expired by now, but for the credit.
  function paid.cool(d, now)
    if d.over <= now then d.cost, d.unit_due, d.job_due, d.needs, d.largest = 1, 0, 0, 1, 0 end
    if d.keep_till <= now then d.credit, d.keep_till, d.idle_from = 0, 0, 0 end
  end

  function paid.encode(d)
    local list = {}
    for i, name in ipairs(NAMES) do list[i] = digits(d[name]) end
    return table.concat(list, ' ')
  end

  function paid.decode(text)
    local d, i = {}, 0
    for number in gmatch(text, '%-?%d+') do
      i = i + 1
      d[NAMES[i] or 'more'] = tonumber(number)
    end
    return d.idle_from and d or nil
  end

  -- expires_at: when nothing of it needs to be kept any more.
  function paid.expires_at(d) return max(d.over, d.keep_till) end

  -- credit_of: the credit of a node for a job that is there since `since`: time without work has paid its debt.
  function paid.credit_of(d, since)
    if d.credit < 0 and d.idle_from > 0 then return min(0, d.credit + max(0, since - d.idle_from)) end
    return d.credit
  end

  -- set_credit: the credit of a node; it is kept for an hour from its due on.
  function paid.set_credit(d, now, due, credit)
    d.credit, d.idle_from = credit, 0
    d.keep_till = credit ~= 0 and max(now, due or 0) + KEPT_US or 0
  end

  -- price: what a job of this cost is charged at this credit, in whole units, and the credit after that.
  function paid.price(p, credit, cost)
    local interval = p.period_us / p.count
    local part = min(1, cost * interval / (HALVES_US + max(0, credit)))
    local charged = max(1, floor(cost - credit / interval * part + 0.5))
    return charged, floor(credit - (cost - charged) * interval + 0.5)
  end

  -- price_percent: what a job is charged at this credit, in percent of its cost, unless it is a very long one.
  function paid.price_percent(credit)
    return floor(100 * (1 - credit / (HALVES_US + max(0, credit))) + 0.5)
  end

  -- corrected: the credit of a node after a job with this base cost `real` units.
  function paid.corrected(p, credit, base_cost, real)
    local interval = p.period_us / p.count
    local most = max(CREDIT_MOST_US, base_cost * interval)
    return floor(max(-DEBT_MOST_US, min(most, credit + (base_cost - real) * interval)) + 0.5)
  end

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
