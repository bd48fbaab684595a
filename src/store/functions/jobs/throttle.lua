-- needs: base, base.events, base.keys, base.names, context, control.change, limits.constraint_store,
--   limits.constraints, pace.slowdown, policy.chain, policy.record, state, tree.budget
-- Throttle: a receiver of jobs says that they come too fast. What slows a bucket or a budget down, and what ends that.
-- (How long it lasts is in pace/slowdown.)

local throttle = {}
do
  local refuse, integer, digits = base.refuse, base.integer, base.digits
  local policy_of = record.policy_of

  local MOST_MS = 366 * 86400000
  local TEXT_MOST = 1000 -- bytes of `by` and `reason`

  -- The retries of a slow-down are due this long before it began: ahead of all other retries.
  throttle.FIRST_US = MOST_MS * 1000

  -- above: the id of the budget with this name above a bucket, or nil.
  local function above(ctx, name, budget_name)
    local p = policy_of(ctx.rec, name)
    if p.refused then return nil end
    local wanted, id = chain.id_of(budget_name), p.parent
    while id and id ~= wanted do id = policy_of(ctx.rec, id).parent end
    return id
  end

  -- node_of: the node to slow down: the bucket, or the budget above it that `IN` names; or nil and the error.
  function throttle.node_of(ctx, name, budget_name)
    if not budget_name then return name end
    local id = above(ctx, name, budget_name)
    if id then return id end
    local why = '"' .. names.as_text(budget_name, 200) .. '" is no budget above ' .. name
    return nil, refuse('BADARG', why .. '; `dripd explain` lists those that are')
  end

  -- change_of: change the slow-down of a node: `act` gets it and the policy of the node; `how` has who and why. The
  -- caller writes it, and reconciles the node (`throttle.reconcile`).
  local function change_of(ctx, id, how, act)
    local p = policy_of(ctx.rec, id)
    how.by, how.reason =
      how.by and names.as_text(how.by, TEXT_MOST), how.reason and names.as_text(how.reason, TEXT_MOST)
    local function slow_down(constraint)
      constraint.slowdown = constraint.slowdown or slowdown.new()
      return act(constraint.slowdown, p)
    end
    if chain.budget_of(id) then return budget.slow_down(ctx, id, slow_down) end
    local constraint = constraints.ensure(ctx, id, p)
    constraint_store.change(ctx, constraint)
    return slow_down(constraint)
  end

  -- report: keep what becomes an event at the end of the call.
  local function report(ctx, id, before, d, p, how)
    ctx.report = {
      what = 'slow', match = id, before = before > ctx.now
        and 'for ' .. digits(ceil((before - ctx.now) / 1000)) .. 'ms' or '',
      after = d.till > ctx.now
        and 'for ' .. digits(ceil((d.till - ctx.now) / 1000)) .. 'ms, ' .. slowdown.in_words(d, p) or 'over',
      by = how.by, user = how.user, reason = how.reason,
    }
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

  -- reconcile: reconcile a node after a slow-down, and write its event. The last step of each slow-down.
  function throttle.reconcile(ctx, id)
    -- A freed slot may have moved the bucket in this call: write that first, so that its state is read and a rollout is
    -- marked once.
    if ctx.marks or ctx.moves then state.flush(ctx) end
    if not chain.budget_of(id) then change.reconcile(ctx, { id }) end
    state.flush(ctx)
    if not ctx.report then return end
    local err = events.add(ctx.k, ctx.report)
    if err then context.note(ctx, 'refused', ctx.k.events, err) end
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
    throttle.reconcile(ctx, id)
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
    local space, name, err = keys.bucket_of(redis_keys)
    if err then return err end
    local how
    how, err = options_of(args)
    if err then return err end
    local ctx, id = context.open(space, now_us), nil
    ctx.report = nil
    id, err = throttle.node_of(ctx, name, how.budget)
    if err then return err end
    return apply(ctx, id, how.ms, how)
  end

  -- drip__slow_node: the same for any bucket or budget, for operators.
  -- keys   <prefix>:policy
  -- args   now_us, JSON: node (its id), in (a budget above it), ms (none: clear), by, user, reason
  -- reply  as drip_slow
  -- errors BADBUCKET BADARG; nothing is changed
  -- cost   O(log n)
  function throttle.slow_node(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    local ok, how = pcall(cjson.decode, args[2] or '')
    if not space or not ok or type(how) ~= 'table' or type(how.node) ~= 'string' then
      return refuse('BADARG', 'slow_node takes the policy key, and JSON: node, in, ms, by, user, reason')
    end
    local budget_name = chain.budget_of(how.node)
    if not names.is_bucket(budget_name or how.node) then
      return refuse('BADBUCKET', 'no bucket or budget can have that name')
    end
    if how.ms and (type(how.ms) ~= 'number' or how.ms < 1 or how.ms > MOST_MS) then
      return refuse('BADARG', 'a slow-down lasts 1 ms to 366 d')
    end
    local ctx = context.open(space, args[1])
    ctx.report = nil
    if not policy_of(ctx.rec, how.node) then
      return chain.unknown(budget_name)
    end
    local id, err = throttle.node_of(ctx, how.node, how['in'])
    if err then return err end
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
