-- needs: base, base.events, base.keys, base.names, context, control.change, limits.constraint_store,
--   limits.constraints, policy.chain, policy.record, state, tree.budget
-- Node change: somebody changes what holds a bucket or a budget at run time: its slow-down (jobs/throttle) or its told
-- limits (jobs/limit_report). What such calls have in common: which node is meant, and what follows from the change.

local node_change = {}
do
  local refuse = base.refuse
  local policy_of = record.policy_of

  local TEXT_MOST = 1000 -- bytes of `by` and `reason`

  -- above: the id of the budget with this name above a bucket, or nil.
  local function above(ctx, name, budget_name)
    local p = policy_of(ctx.rec, name)
    if p.refused then return nil end
    local wanted, id = chain.id_of(budget_name), p.parent
    while id and id ~= wanted do id = policy_of(ctx.rec, id).parent end
    return id
  end

  -- node_of: the node to change: the bucket, or the budget above it that `IN` names; or nil and the error.
  function node_change.node_of(ctx, name, budget_name)
    if not budget_name then return name end
    local id = above(ctx, name, budget_name)
    if id then return id end
    local why = '"' .. names.as_text(budget_name, 200) .. '" is no budget above ' .. name
    return nil, refuse('BADARG', why .. '; `dripd explain` lists those that are')
  end

  -- open: a context for a change by `how` { node, budget }. Replies it, the node to change and `how`; or nil and the
  -- error, for a client also where no record is stored.
  local function open(space, now_us, how, is_for_client)
    local ctx = context.open(space, now_us)
    ctx.report = nil
    if is_for_client and not ctx.id then return nil, context.unknown(ctx.k) end
    if not policy_of(ctx.rec, how.node) then return nil, chain.unknown(chain.budget_of(how.node)) end
    local id, err = node_change.node_of(ctx, how.node, how.budget)
    if not id then return nil, err end
    return ctx, id, how
  end

  -- of_bucket: a change of a bucket, or of a budget above it, by the queue key of the bucket. `read` gets the arguments
  -- and replies { budget: nil where none is named, ... }, or nil and the error. Replies as `open`.
  function node_change.of_bucket(redis_keys, args, now_us, read)
    local space, name, err = keys.bucket_of(redis_keys)
    if err then return nil, err end
    local how
    how, err = read(args)
    if err then return nil, err end
    how.node = name
    return open(space, now_us, how, true)
  end

  -- of_operator: a change of any bucket or budget, by the policy key, now_us, and JSON: node (its id), in (a budget
  -- above it), and more, which `read` checks: it replies an error or nothing. Replies as `open`.
  function node_change.of_operator(redis_keys, args, takes, read)
    local space = keys.space_before(redis_keys[1], 'policy')
    local ok, how = pcall(cjson.decode, args[2] or '')
    if not space or not ok or type(how) ~= 'table' or type(how.node) ~= 'string' then
      return nil, refuse('BADARG', takes)
    end
    if not names.is_bucket(chain.budget_of(how.node) or how.node) then
      return nil, refuse('BADBUCKET', 'no bucket or budget can have that name')
    end
    local err = read(how)
    if err then return nil, err end
    how.budget = how['in']
    return open(space, args[1], how)
  end

  -- apply: change the constraint of a node: `act` gets it and the policy of the node; `how` has who and why. The caller
  -- reconciles the node afterwards (`reconcile`). Replies what `act` replies.
  function node_change.apply(ctx, id, how, act)
    how.by, how.reason =
      how.by and names.as_text(how.by, TEXT_MOST), how.reason and names.as_text(how.reason, TEXT_MOST)
    if chain.budget_of(id) then return budget.change_constraint(ctx, id, act) end
    local p = policy_of(ctx.rec, id)
    local constraint = constraints.ensure(ctx, id, p)
    constraint_store.change(ctx, constraint)
    return act(constraint, p)
  end

  -- report: keep what becomes an event at the end of the call.
  function node_change.report(ctx, what, id, before, after, how)
    ctx.report = { what = what, match = id, before = before, after = after, by = how.by, user = how.user,
      reason = how.reason }
  end

  -- reconcile: reconcile a node after a change, and write its event. The last step of each change.
  function node_change.reconcile(ctx, id)
    -- A freed slot may have moved the bucket in this call: write that first, so that its state is read and a rollout is
    -- marked once.
    if ctx.marks or ctx.moves then state.flush(ctx) end
    if not chain.budget_of(id) then change.reconcile(ctx, { id }) end
    state.flush(ctx)
    if not ctx.report then return end
    local err = events.add(ctx.k, ctx.report)
    if err then context.note(ctx, 'refused', ctx.k.events, err) end
  end
end
