-- needs: base
-- Rates: the arithmetic of intervals. A policy has `count` jobs in `period_us`; an interval is `step` microseconds and
-- `part`/count of one more.

local rate = {}
do
  -- prepare: set what follows from count and period.
  function rate.prepare(p)
    p.step = floor(p.period_us / p.count)
    p.part = p.period_us - p.step * p.count
    p.interval_us = p.part == 0 and p.step or p.step + 1 -- the longest one
  end

  -- offset: where the k-th of `count` equal parts of a period begins, in whole microseconds. The products stay below
  -- 2^53: k * step <= period < 2^45, and k * part < count^2 <= 2.5 * 10^15.
  local function offset(p, k)
    return k * p.step + floor(k * p.part / p.count)
  end

  -- part_of: the start of the period of a time, the number of its part, and how far the time is from the start of that
  -- part.
  local function part_of(p, t)
    local base_us = floor(t / p.period_us) * p.period_us
    local r = t - base_us
    local k = floor(r / p.period_us * p.count)
    while offset(p, k) > r do k = k - 1 end
    while offset(p, k + 1) <= r do k = k + 1 end
    return base_us, k, r - offset(p, k)
  end

  -- after: one interval after `t`. Where the interval is not a whole number of microseconds the remainder is carried
  -- without being stored. Time is cut into periods since the epoch, and each period into `count` parts as equal as
  -- whole microseconds allow. A due keeps its distance to the start of its part. Any n intervals in a row then add up
  -- to n * period / count, to within 1 us.
  function rate.after(p, t)
    if p.part == 0 then return t + p.step end
    local base_us, k, beyond = part_of(p, t)
    return base_us + offset(p, k + 1) + beyond
  end

  -- nth: when the n-th waiting job is due, where the first one is due at `due`: n - 1 times `after`.
  local function nth(p, due, n)
    if p.part == 0 then return due + (n - 1) * p.step end
    local base_us, k, beyond = part_of(p, due)
    k = k + n - 1
    local periods = floor(k / p.count)
    return base_us + periods * p.period_us + offset(p, k - periods * p.count) + beyond
  end
  rate.nth = nth

  -- before: how many of n jobs are due before a time.
  function rate.before(p, due, n, at)
    if nth(p, due, n) < at then return n end
    local k = max(0, min(n, ceil((at - due) / p.period_us * p.count)))
    while k > 0 and nth(p, due, k) >= at do k = k - 1 end -- the estimate may be off by one or two
    while k < n and nth(p, due, k + 1) < at do k = k + 1 end
    return k
  end

  -- eta_ms: how long until the n-th waiting job is due, rounded up; 0 where it could leave now.
  function rate.eta_ms(p, due, now, n)
    local us, job = due - now + (n - 1) * p.step + (n - 1) * p.part / p.count, p.job
    if job then us = max(us, due - now + (n - 1) * job.period_us / job.count) end
    return us > 0 and ceil(us / 1000) or 0
  end

  -- retry_after_ms: how long until one place is expected to be free, at least 1.
  function rate.retry_after_ms(due, now)
    return max(1, ceil((due - now) / 1000))
  end
end
