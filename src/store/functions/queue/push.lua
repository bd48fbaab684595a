-- needs: base, base.keys, base.names, base.partition, context, limits.slots, pace.rate, policy.record, queue.gate,
--   queue.rejected, queue.rejecting, queue.retries, state, state.bucket, tree.budget
-- Push and peek: the atomic push into a bucket, and its figures without changing anything.

local push = {}
do
  local refuse, wrong_type, is_error = base.refuse, base.wrong_type, base.is_error
  local eta_ms, retry_after_ms = rate.eta_ms, rate.retry_after_ms

  local MOST_JOBS = 1000
  local STUCK_MS = 1000 -- the least wait until somebody frees a place
  local OVERDUE_US = 1000000 -- a job that has been due for longer than this is one that no daemon lets out

  local opened -- the space of the last call that could open it: only another one may be unreachable

  -- stored: what is stored of the bucket behind a queue key: its name, length, state, due and allowance; or nil and an
  -- error, also where no record is stored, unless that may be. Its context is only filled where something other than a
  -- rate may stop a bucket.
  local function stored(redis_keys, now_us, may_be_unknown)
    if #redis_keys ~= 1 then return nil, refuse('BADARG', 'one key is needed: <prefix>:queue:<bucket>') end
    local queue = redis_keys[1]
    local space, name = keys.split_queue(queue)
    if not space or not names.is_bucket(name) then
      return nil, refuse('BADBUCKET', 'the key must be <prefix>:queue:<bucket>, and the bucket 1 to 200 bytes of UTF-8'
        .. ' without control characters, { or }')
    end
    local ctx
    if space == opened then
      ctx = context.look(space, now_us)
    else
      local ok
      ok, ctx = pcall(context.look, space, now_us)
      if not ok then return nil, partition.not_opened(ctx, name) end
      opened = space
    end
    local elsewhere = (not ctx.id or (ctx.rec.base or ctx.rec).cut) and partition.elsewhere(ctx, name)
    if elsewhere then return nil, refuse('BADBUCKET', name .. ' is not taken here: ' .. elsewhere) end
    if not ctx.id and not may_be_unknown then return nil, context.unknown(ctx.k) end
    local len = pcall_redis('LLEN', queue)
    if is_error(len) then return nil, wrong_type(queue, 'list') end
    if not ctx.is_simple or ctx.held ~= '' then context.fill(ctx) end
    local from, due = state.find(ctx, name)
    local allowance = call('HGET', ctx.k.level, name)
    return ctx, name, len, from, due, allowance and tonumber(allowance) or nil
  end

  -- read: the state of the bucket behind a queue key, or nil and an error. For operators `may_be_unknown`: there the
  -- defaults hold where no record is stored.
  function push.read(redis_keys, now_us, may_be_unknown)
    local ctx, name, len, from, due, allowance = stored(redis_keys, now_us, may_be_unknown)
    if not ctx then return nil, nil, name end
    context.fill(ctx)
    return ctx, bucket.decide(ctx, ctx.bucket, name, redis_keys[1], len, from, due, allowance)
  end

  -- fits: how many of n jobs are accepted, by the gates and the free places; and for how many there are free places.
  function push.fits(s, gates, n)
    if not s.p.drop_oldest and s.len + n > s.p.capacity then n = max(0, s.p.capacity - s.len) end
    return gate.let_in(gates, n), n
  end

  -- begun: the due of a bucket once jobs come into it. A bucket without work earns no credit for the time since its
  -- due.
  function push.begun(ctx, name, due, len)
    if not due or due < ctx.now and len == 0 and not retries.has_ended(ctx, name) then return ctx.now end
    return due
  end

  -- begins: jobs come into a bucket. A bucket with an empty queue may still have work: retries, or delayed jobs whose
  -- time has come.
  function push.begins(ctx, s)
    s.due = push.begun(ctx, s.bucket, s.due, s.len)
    local had_work = s.len > 0 or s.state ~= nil and s.state ~= ctx.k.rest
    if s.p.parent and not s.p.refused and not had_work then budget.drop_stale_tag(ctx, s.p.parent, s.bucket) end
  end

  -- allowance_of: how many jobs a bucket may keep: those that it has and those that come.
  function push.allowance_of(s)
    return s.len > s.p.capacity and s.len or s.p.capacity
  end

  -- reckoned: a due of a bucket for estimates in replies, nil: its present one. For a paused, held or blocked bucket as
  -- if that ended now.
  function push.reckoned(ctx, s, due)
    due = due or s.due or ctx.now
    if s.p.paused or s.state == ctx.k.full or state.is_held(ctx, s.state) then return max(due, ctx.now) end
    return due
  end

  -- eta_of: when the n-th waiting job is due, by the bucket and by every budget above it.
  local function eta_of(ctx, p, due, n)
    local eta = eta_ms(p, due, ctx.now, n)
    return p.parent and not p.refused and max(eta, (budget.eta_ms(ctx, p.parent, n))) or eta
  end

  -- is_stuck: whether nothing leaves a bucket before an operator, a daemon or a worker does something. Where a job has
  -- been due for a while, or nobody has looked at jobs that are there, no daemon runs.
  local function is_stuck(ctx, s, due)
    local p, latest = s.p, due
    if p.closed or p.paused or p.refused or s.state == ctx.k.full or state.is_held(ctx, s.state) then return true end
    if not s.due and s.len > 0 or p.concurrency and slots.is_full(ctx, s.bucket, p) then return true end
    for _, b in ipairs(p.parent and budget.ancestors(ctx, p.parent) or {}) do
      if not b.p or b.p.paused or b.p.refused or b.state == ctx.k.full then return true end
      latest = max(latest, b.due, b.resumed_at)
    end
    return latest < ctx.now - OVERDUE_US
  end

  -- honest: a wait in ms, which is no shorter than it takes somebody to do something.
  function push.honest(ctx, s, due, ms)
    if ms < STUCK_MS and is_stuck(ctx, s, due) then return STUCK_MS end
    return ms
  end

  -- wait_for_room: how long until one place is expected to be free: when the next job leaves.
  function push.wait_for_room(ctx, s, due)
    local p = s.p
    local ms = p.parent and not p.refused and max(1, eta_of(ctx, p, due, 1)) or retry_after_ms(due, ctx.now)
    return push.honest(ctx, s, due, ms)
  end

  -- verdict: the reply to a push of n jobs, of which `accepted` are in the queue now.
  function push.verdict(ctx, s, gates, n, accepted)
    local p, due, wait = s.p, push.reckoned(ctx, s), -1
    if accepted < n then
      wait = gate.slowest(gates)
      if s.len >= p.capacity and not p.drop_oldest then wait = max(wait, push.wait_for_room(ctx, s, due)) end
    end
    return {
      accepted,
      s.len,
      p.capacity,
      wait,
      accepted == 0 and -1 or p.parent and eta_of(ctx, p, due, s.len) or eta_ms(p, due, ctx.now, s.len),
    }
  end

  -- can_be_cut: nil where the jobs above the allowance can be cut, and those that `n` more jobs push out; else the
  -- error.
  function push.can_be_cut(ctx, s, n)
    if s.over == 0 and not (s.p.drop_oldest and s.len + n > s.p.capacity) then return nil end
    return base.not_a('stream', 'XLEN', ctx.k.rejected)
  end

  -- count_refused: n jobs were refused.
  function push.count_refused(ctx, s, n)
    context.count(ctx, 'rejected', n)
    context.count(ctx, 'turned_away', n)
    if s.p.closed then context.count(ctx, 'closed', n) end
    rejecting.add(ctx, s.bucket, n)
  end

  -- put_in: the first n of some jobs go into the queue. With drop-oldest older jobs are dropped for them.
  function push.put_in(ctx, s, gates, jobs, n)
    push.begins(ctx, s)
    if gates[1] then gate.charge(gates, n) end
    call('LPUSH', s.queue, unpack(jobs, 1, n))
    local allowance = push.allowance_of(s)
    s.len = s.len + n
    if s.len > allowance then
      s.over, s.len = s.len - allowance, allowance
      rejected.cut(ctx, s)
    end
  end

  -- enter: write the state of a bucket after a push.
  function push.enter(ctx, s)
    if s.due then
      -- An empty bucket may be on the schedule for a retry.
      s.retry_ready = s.len == 0 and s.state ~= nil and retries.has_ended(ctx, s.bucket)
      state.enter(ctx, s, state.decide(ctx, s) or s.state, 'arrive')
    elseif s.stored_due and s.stored_due > ctx.now then
      state.enter(ctx, s, nil, 'arrive') -- by a new rate it has cooled down
    end
    state.flush(ctx)
  end

  -- too_large: the refusal of the first job that is too large, or nil.
  local function too_large(ctx, jobs)
    local limit = ctx.limits.max_job_bytes
    for i = 1, #jobs do
      if #jobs[i] > limit then
        return refuse('TOOLARGE', 'job ' .. i .. ' has ' .. #jobs[i] .. ' bytes, limits.max_job_bytes is ' .. limit)
      end
    end
  end

  -- plain_push: a push into a bucket that only its rate can stop, with room for all jobs, without settings and changes:
  -- most pushes. It does what `push` would do. Replies nil where it does not apply, and nothing was done.
  local function plain_push(ctx, name, queue, jobs, len, from, due, for_no_ttl)
    local k, now, n, p = ctx.k, ctx.now, #jobs, ctx.rec.plain or record.policy_of(ctx.rec, name)
    local waits_by_rate = from == k.schedule or from == nil or from == k.rest
    if not waits_by_rate or len + n > p.capacity or p.gates[1] or for_no_ttl and p.ttl_us then return nil end
    local err = too_large(ctx, jobs)
    if err then return err end
    local stored_due = due
    if due and due > now + p.interval_us then due = now + p.interval_us end
    if due and due <= now and from == k.rest then due = nil end
    due = push.begun(ctx, name, due, len)
    context.count(ctx, 'pushed', n)
    call('LPUSH', queue, unpack(jobs))
    if from ~= k.schedule or due ~= stored_due then state.schedule(ctx, name, from, due) end
    return { n, len + n, p.capacity, -1, eta_ms(p, due, now, len + n) }
  end

  -- drip_push: put jobs into a bucket, never over its capacity nor past its gates. It never dispatches.
  -- keys   <prefix>:queue:<bucket>
  -- args   job [job ...] (1 to 1,000); `for_no_ttl`: nothing is done, and nothing replied, where the bucket has a `ttl`
  -- reply  { accepted, depth, capacity, retry_after_ms or -1, eta_ms or -1 }; retry_after_ms is at least 1,000 where
  --        only an operator, a daemon or a worker can free a place
  -- errors BADBUCKET (also: no policies are stored for the prefix) BADARG TOOMANY TOOLARGE WRONGTYPE OOM; nothing is
  --        changed
  -- cost   O(jobs)
  function push.push(redis_keys, jobs, now_us, for_no_ttl)
    if #redis_keys == 1 and #jobs == 0 then return refuse('BADARG', 'no job given') end
    if #jobs > MOST_JOBS then return refuse('TOOMANY', 'at most 1000 jobs a call; split the push') end
    local ctx, name, len, from, due, allowance = stored(redis_keys, now_us)
    if not ctx then return name end
    if not allowance and not ctx.is_filled then
      local reply = plain_push(ctx, name, redis_keys[1], jobs, len, from, due, for_no_ttl)
      if reply then return reply end
    end
    context.fill(ctx)
    local s, err = bucket.decide(ctx, ctx.bucket, name, redis_keys[1], len, from, due, allowance), nil
    if for_no_ttl and s.p.ttl_us then return nil end
    if s.p.refused then return refuse('BADBUCKET', s.bucket .. ' has no budget to leave through: ' .. s.p.refused) end
    local gates
    gates, err = gate.read(ctx, s)
    if err then return err end
    err = too_large(ctx, jobs)
    if err then return err end
    err = (s.over > 0 or s.p.drop_oldest) and push.can_be_cut(ctx, s, #jobs)
    if err then return err end
    -- checks end here
    rejected.trim_to_capacity(ctx, s)
    local accepted, places_for = push.fits(s, gates, #jobs)
    if accepted > 0 then context.count(ctx, 'pushed', accepted) end
    if accepted < #jobs then
      push.count_refused(ctx, s, #jobs - accepted)
      if accepted < places_for then context.count(ctx, 'gated', places_for - accepted) end
    end
    if accepted > 0 then push.put_in(ctx, s, gates, jobs, accepted) end
    push.enter(ctx, s)
    return push.verdict(ctx, s, gates, #jobs, accepted)
  end

  -- drip_peek: how full a bucket is. It does not ask the gates, because a plain LPUSH does not pass them.
  -- keys   <prefix>:queue:<bucket>
  -- reply  { 0, depth, capacity, retry_after_ms or -1 (there is room), eta_ms of the next job or -1 (none waits) }
  -- errors BADBUCKET BADARG WRONGTYPE
  -- cost   O(1)
  function push.peek(redis_keys, args, now_us)
    if #args > 0 then return refuse('BADARG', 'peek takes a key and nothing else') end
    local ctx, s, err = push.read(redis_keys, now_us)
    if err then return err end
    local due = push.reckoned(ctx, s)
    local full = s.len >= s.p.capacity and not s.p.drop_oldest
    return {
      0, s.len, s.p.capacity,
      full and push.wait_for_room(ctx, s, due) or -1,
      s.len == 0 and -1 or eta_of(ctx, s.p, due, 1),
    }
  end

  -- drip__look: all figures of one bucket, for `dripd status`.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us
  -- reply  { depth, capacity, due in us from now (-1 = none), held 0/1, retries, count, period_us, lease_ms,
  --          attempts (both 0 where its route forwards), overflow, route,
  --          { { { limiter, limit, remaining, ms until it lets one in }, ... for each gate },
  --            the name or glob that pauses it and when that ends, the one that closes it and when that ends ('' =
  --            nothing, never),
  --            why nothing may leave it ('' = it may), and how many delayed jobs wait } }
  -- errors as peek
  -- cost   O(1)
  function push.look(redis_keys, args)
    local ctx, s, err = push.read(redis_keys, args[1], true)
    if err then return err end
    local gates
    gates, err = gate.read(ctx, s)
    if err then return err end
    for i, one in ipairs(gates) do
      gates[i] = { one.name, one.p.limit, max(0, one.state.free), gate.wait_ms(one) }
    end
    local p, k = s.p, ctx.k
    return {
      s.len, p.capacity, s.due and max(0, s.due - ctx.now) or -1, state.is_held(ctx, s.state) and 1 or 0,
      base.number(pcall_redis('ZCARD', k.retry .. s.bucket)),
      p.count, p.period_us, p.forward and 0 or p.lease_ms, p.forward and 0 or p.attempts, p.overflow, p.route,
      { gates, p.paused or '', p.paused and p.set.pause.setting.till or '', p.closed or '',
        p.closed and p.set.close.setting.till or '',
        p.refused or '', base.number(pcall_redis('ZCARD', k.delayed .. s.bucket)) },
    }
  end
end
