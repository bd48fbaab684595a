-- needs: base, base.names, context, jobs.node_change, limits.constraint_store, limits.constraints, pace.slowdown,
--   policy.record, state, tree.budget
-- Throttle: a receiver of jobs says that they come too fast. What slows a bucket or a budget down, and what ends that.
-- (How long it lasts is in pace/slowdown.)

local throttle = {}
do
  local refuse, integer, digits = base.refuse, base.integer, base.digits
  local policy_of = record.policy_of

  local MOST_MS = 366 * 86400000

  -- The retries of a slow-down are due this long before it began: ahead of all other retries.
  throttle.FIRST_US = MOST_MS * 1000

  -- change_of: change the slow-down of a node: `act` gets it and the policy of the node; `how` has who and why.
  local function change_of(ctx, id, how, act)
    return node_change.apply(ctx, id, how, function(constraint, p)
      constraint.slowdown = constraint.slowdown or slowdown.new()
      return act(constraint.slowdown, p)
    end)
  end

  -- report: keep what becomes an event at the end of the call.
  local function report(ctx, id, before, d, p, how)
    local was = before > ctx.now and 'for ' .. digits(ceil((before - ctx.now) / 1000)) .. 'ms' or ''
    local is = d.till > ctx.now
      and 'for ' .. digits(ceil((d.till - ctx.now) / 1000)) .. 'ms, ' .. slowdown.in_words(d, p) or 'over'
    node_change.report(ctx, 'slow', id, was, is, how)
  end

  -- because: note who and why, where they decide how long it lasts.
  local function because(d, how)
    d.by, d.reason = how.by or '', how.reason or ''
  end

  -- incident: the receiver sent back a job that left at `left_us`. Replies when the slow-down began that it belongs to.
  --   how { retry_after_us: nil where the receiver named no time; by, reason }
  function throttle.incident(ctx, id, left_us, how)
    return change_of(ctx, id, how, function(d, p)
      local before = d.till
      local is_new = slowdown.incident(d, p.slow, ctx.now, id, left_us, how.retry_after_us, p.count ~= nil)
      if d.till > before then because(d, how) end
      if is_new then
        local is_glob = p.match and find(p.match, '[*?%[\\]')
        context.count(ctx, 'slow:' .. (is_glob and p.match or p.match and '(named)' or '(defaults)'), 1)
        report(ctx, id, before, d, p, how)
      end
      return d.begun
    end)
  end

  -- apply: pause a node for so many ms, nil: end its slow-down. Replies { ms until it resumes, incidents }.
  local function apply(ctx, id, ms, how)
    local reply = change_of(ctx, id, how, function(d, p)
      local before = d.till
      if ms then slowdown.request(d, p.slow, ctx.now, ms * 1000) else slowdown.clear(d, ctx.now) end
      if d.till > before then because(d, how) end
      report(ctx, id, before, d, p, how)
      return { max(0, ceil((d.till - ctx.now) / 1000)), d.incidents }
    end)
    node_change.reconcile(ctx, id)
    context.wake(ctx.k)
    return reply
  end

  -- options_of: the options after the key: { ms (nil: clear), budget, reason }, or nil and the error.
  local function options_of(args)
    local how, i, is_given = {}, 1, false
    while i <= #args do
      local option, value = upper(args[i]), args[i + 1]
      if option == 'PAUSE' and not is_given then
        how.ms, is_given, i = base.whole(value, 1, MOST_MS), true, i + 1
        if not how.ms then return nil, refuse('BADARG', 'PAUSE needs whole milliseconds, 1 to ' .. digits(MOST_MS)) end
      elseif option == 'CLEAR' and not is_given then is_given = true
      elseif option == 'IN' and value then how.budget, i = value, i + 1
      elseif option == 'REASON' and value then how.reason, i = value, i + 1
      else return nil, refuse('BADARG', 'argument ' .. i .. ' is none of PAUSE ms, CLEAR, IN budget, REASON text') end
      i = i + 1
    end
    if not is_given then return nil, refuse('BADARG', 'say PAUSE ms or CLEAR') end
    return how
  end

  -- drip_slow: slow a bucket down, or a budget above it, or end that.
  -- keys   <prefix>:queue:<bucket>
  -- args   PAUSE ms | CLEAR [IN budget] [REASON text]
  -- reply  { ms until it resumes, incidents }
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n)
  function throttle.slow(redis_keys, args, now_us)
    local ctx, id, how = node_change.of_bucket(redis_keys, args, now_us, options_of)
    if not ctx then return id end
    return apply(ctx, id, how.ms, how)
  end

  -- drip__slow_node: the same for any bucket or budget, for operators.
  -- keys   <prefix>:policy
  -- args   now_us, JSON: node (its id), in (a budget above it), ms (none: clear), by, user, reason
  -- reply  as drip_slow
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n)
  function throttle.slow_node(redis_keys, args)
    local takes = 'slow_node takes the policy key, and JSON: node, in, ms, by, user, reason'
    local ctx, id, how = node_change.of_operator(redis_keys, args, takes, function(how)
      if how.ms and (type(how.ms) ~= 'number' or how.ms < 1 or how.ms > MOST_MS) then
        return refuse('BADARG', 'a slow-down lasts 1 ms to 366 d')
      end
    end)
    if not ctx then return id end
    return apply(ctx, id, how.ms, how)
  end

  -- done: these entries of a stream were acknowledged and are about to be deleted. A job that left after a slow-down
  -- ends its incidents.
  function throttle.done(space, stream, ids, now_us)
    local ctx, bytes = context.open(space, now_us), 0
    if not ctx.has_slow then return end
    for _, entry in ipairs(ids) do
      if bytes >= MIB then break end
      local found = call('XRANGE', stream, entry, entry)[1]
      local fields = base.by_name(found and found[2] or {})
      bytes = bytes + #(fields.job or '')
      throttle.done_job(ctx, fields)
    end
    if ctx.changed_constraints then state.flush(ctx) end
  end

  -- done_job: the same for one of them.
  function throttle.done_job(ctx, fields)
    local left_us = integer(fields.at_us or '')
    if not left_us or not fields.bucket or not names.is_bucket(fields.bucket) then return end
    local p = policy_of(ctx.rec, fields.bucket)
    local constraint = constraints.of(ctx, fields.bucket, p)
    if constraint and constraint.slowdown and slowdown.acknowledged(constraint.slowdown, left_us) then
      constraint_store.change(ctx, constraint)
    end
    for _, b in ipairs(p.parent and not p.refused and budget.ancestors(ctx, p.parent) or {}) do
      if b.constraint and b.constraint.slowdown and slowdown.acknowledged(b.constraint.slowdown, left_us) then
        budget.constraint_changed(ctx, b)
      end
    end
  end
end
