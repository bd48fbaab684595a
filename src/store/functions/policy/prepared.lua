-- needs: base, limiter, pace.rate, policy.forward
-- Prepared policies: values that follow from the fields of a policy, so that they are computed once. Nothing here calls
-- Redis.

local prepared = {}
do
  -- How long the ids of jobs are remembered where `dedup` is not configured.
  local DEDUP_US = 600000000

  -- The most that a job may cost where `cost_max` is not configured: what the configured rate lets out in a minute, and
  -- never more than this.
  local COST_MOST, MINUTE_US = 100000, 60000000

  -- How long slow-downs last where `slow` is not configured.
  local SLOW = { initial_us = 1000000, max_us = 600000000, cap_us = 3600000000, adaptive = false }

  -- prepare_gates: the limiters that a policy names in `admit`, each with its arguments as its function takes them
  -- after the key. The place of a gate is its place among the gates of the same recipe.
  local function prepare_gates(p)
    p.gates = {}
    local nth = {}
    for n, gate in ipairs(p.admit or {}) do
      local kind = limiter.by_name[gate.limiter]
      if not kind then error('no limiter ' .. tostring(gate.limiter)) end
      local learnt, err = limiter.learn(kind, gate.args)
      if not learnt then error(err.err) end
      nth[gate.limiter] = (nth[gate.limiter] or 0) + 1
      p.gates[n] = {
        name = gate.limiter, place = nth[gate.limiter], limiter = kind, p = learnt,
        given = gate.args[kind.takes + 1] ~= nil,
      }
    end
  end

  -- policy: set what follows from the fields of a policy. A budget may have no rate: then it is never early.
  -- `forwards`: the routes of the record that forward, for the policy of a bucket.
  function prepared.policy(p, forwards)
    if p.count then rate.prepare(p) else p.step, p.part, p.interval_us = 0, 0, 0 end
    p.lease = base.digits(p.lease_ms or 0)
    p.drop_oldest = p.overflow == 'drop-oldest'
    p.weight = p.weight or 1
    if p.within == '' then p.within = nil end
    if p.concurrency == 0 then p.concurrency = nil end
    forward.fit(p, forwards)
    if p.quotas and not p.quotas[1] then p.quotas = nil end
    p.slow = p.slow or SLOW
    p.dedup_us = p.dedup_us or DEDUP_US
    if p.ttl_us == 0 then p.ttl_us = nil end
    if p.cost_max == 0 then p.cost_max = nil end
    -- A policy with settings brings that of the configured rate (policy/setting): a rate that is set allows no more.
    p.minute_cost = p.minute_cost or min(COST_MOST, max(1, p.count and floor(MINUTE_US * p.count / p.period_us) or 1))
    p.cost_limit = p.cost_max or p.minute_cost
    -- `job_rate` is a second rate, or takes the place of the rate: then the cost of a job does not matter.
    p.job = nil
    if (p.job_count or 0) > 0 and not p.count then
      p.count, p.period_us, p.ignores_cost = p.job_count, p.job_period_us, true
      rate.prepare(p)
    elseif (p.job_count or 0) > 0 then
      p.job = { count = p.job_count, period_us = p.job_period_us }
      rate.prepare(p.job)
    end
    p.limited = p.concurrency ~= nil -- none of its jobs takes the fast path
    p.ordered = p.ordered and p.concurrency == 1
    prepare_gates(p)
    return p
  end
end
