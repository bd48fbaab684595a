-- needs: base, base.events, base.glob, base.keys, base.names, base.partition, context, context.memory,
--   context.settings, limits.constraints, limits.recount, policy.chain, policy.forward, policy.record,
--   policy.setting, queue.rejected, queue.retries, route, state, state.bucket, tree.budget
-- Changes at run time: what operators set, and timed settings that end.
--
-- A setting of a name is applied to its bucket within the call. A setting of a glob counts in every call from then on,
-- and is rolled out to the nodes in a state as a new record is (control/sweep).

local change = {}
do
  local refuse, digits = base.refuse, base.digits
  local spent, policy_of = context.spent, record.policy_of

  local FIELDS_MOST = 20 -- keys in one call
  local REASON_LONGEST = 1000 -- bytes
  local LONGEST_US = 366 * 86400000000 -- the longest time for which a setting can be timed
  local NAME_LONGEST, GLOB_STEPS = 200, 20000 -- the steps that a glob may take for a name: some 50 us

  local function reconcile_bucket(ctx, s, name, from, due, allowance)
    local queue = ctx.k.queues .. name
    bucket.decide(ctx, s, name, queue, bucket.length_of(ctx, queue) or 0, from, due, allowance)
    s.retry_ready = retries.has_ended(ctx, name)
    if not s.due and (s.len > 0 or s.over > 0 or s.retry_ready) then s.due = ctx.now end
    -- A job was sent back, or no call has seen that its back-off ended.
    local begins = s.retry_ready and (from == nil or from == ctx.k.rest)
    if begins and s.p.parent and not s.p.refused then budget.drop_stale_tag(ctx, s.p.parent, name) end
    if not rejected.trim_to_capacity(ctx, s) then
      bucket.park(ctx, s, 'change')
    else
      retries.reorder(ctx, name)
      state.enter(ctx, s, s.due and state.decide(ctx, s) or nil, 'change') -- without a due nothing of it stays
    end
    memory.drop(ctx.memory, name)
  end

  -- reconcile: reconcile some nodes after a setting changed or ended: cut them, re-anchor their dues, and decide their
  -- states. Replies how many of them are done: a call that has read as much as one may stops early.
  -- reads, writes  as a look at their queues      cost  O(names)
  local function reconcile(ctx, names)
    if not names[1] then return 0 end
    local states, dues = state.load(ctx, names)
    local allowances, s = call('HMGET', ctx.k.level, unpack(names)), {}
    constraints.expect(ctx, names)
    for i, name in ipairs(names) do
      if spent(ctx) then
        state.flush(ctx)
        return i - 1
      end
      if chain.budget_of(name) then
        budget.reconcile(ctx, name)
        ctx.memory.refused_again = true
      else
        reconcile_bucket(ctx, s, name, states[i], dues[i], tonumber(allowances[i] or nil))
      end
    end
    state.flush(ctx)
    return #names
  end
  change.reconcile = reconcile

  -- needs_rollout: whether a change of globs needs a rollout. Where a setting has ended and no rollout has followed,
  -- nodes that were cooling when it ended count too: their due may have passed since, but under the policy in force it
  -- may lie in the future.
  -- So do jobs in flight, where a limit of them may come (limits/recount). `all` are the globs from now on.
  local function needs_rollout(ctx, all)
    if ctx.id == nil then return false end
    local at = ctx.rec.ended_us > 0 and ctx.rec.first_ended_us or ctx.now
    if state.any(ctx.k, at) or ctx.held ~= '' then return true end
    local may_limit = (ctx.rec.base or ctx.rec).has_slots
    for _, entry in pairs(all and all.globs or {}) do may_limit = may_limit or entry.keys.concurrency ~= nil end
    for _, g in ipairs(ctx.rec.all_globs or {}) do may_limit = may_limit or g.entry.keys.concurrency ~= nil end
    return may_limit and recount.is_any_out(ctx)
  end

  -- end_over: reconcile what timed settings that have ended left behind: a batch of names, and all globs, whose end
  -- needs a rollout. Where a rollout is going on, it goes on until the end is applied to every bucket too.
  function change.end_over(ctx)
    local names = {}
    for _, name in ipairs(settings.ended(ctx, ctx.limits.batch)) do
      local p = policy_of(ctx.rec, name)
      if not p then
        settings.drop_over(ctx, name) -- a budget that is not in the configuration any more
      elseif p.over then
        names[#names + 1] = name
      else
        settings.reconcile_end(ctx, name)
      end
    end
    if #names > 0 then reconcile(ctx, names) end
    if ctx.rec.ended_us > 0 and not ctx.rollout then
      if needs_rollout(ctx) then
        settings.begin_end(ctx)
      else
        call('UNLINK', ctx.k.reached)
        settings.drop_ended_globs(ctx)
      end
      context.renew(ctx)
    end
    settings.forget_if_none(ctx)
  end

  -- read: decode and check the change of drip__set, or nil and an error.
  function change.read(text)
    local ok, c = pcall(cjson.decode, text or '')
    local is_good = ok and type(c) == 'table' and type(c.match) == 'string' and c.match ~= ''
      and type(c.set or {}) == 'table' and type(c.unset or {}) == 'table'
      and (c.for_us == nil or type(c.for_us) == 'number' and c.for_us > 0 and c.for_us <= LONGEST_US)
      and (c.reason == nil or type(c.reason) == 'string')
      and (c.is_glob == true or names.is_bucket(chain.bare(c.match)))
    if not is_good then
      return nil, refuse('BADARG', 'set takes a change as JSON: match, is_glob, set, unset, for_us, by, user, reason')
    end
    local n = 0
    for _, one in pairs(c.set or {}) do
      n = n + 1
      if type(one) ~= 'table' or type(one.text) ~= 'string' or type(one.policy) ~= 'table' then
        return nil, refuse('BADARG', 'each key that is set has a text and a policy')
      end
    end
    for key, one in pairs(c.set or {}) do
      if not setting.is_key(key) or not record.is_usable(one.policy) then
        return nil, refuse('BADARG', key .. ' = ' .. one.text .. ' makes no policy here')
      end
    end
    -- What was set once can be taken back, whatever it costs.
    if c.is_glob and next(c.set or {}) then
      local is_long = #c.match > glob.LONGEST + 2 -- of budgets it is in braces
      if is_long or glob.steps(glob.compile(chain.bare(c.match)), NAME_LONGEST) > GLOB_STEPS then
        return nil, refuse('BADARG', 'the glob takes too long to compare: write fewer classes and ? between two stars')
      end
    end
    if c.reason and #c.reason > REASON_LONGEST then
      return nil, refuse('BADARG', 'a reason is at most ' .. REASON_LONGEST .. ' bytes long')
    end
    if n > FIELDS_MOST then return nil, refuse('TOOMANY', 'at most ' .. FIELDS_MOST .. ' keys a call') end
    return c
  end

  -- value_of: the present value of a key of an entry, as an operator writes it; '' where nothing is set.
  local function value_of(entry, key, now)
    local one = entry.keys[key]
    local it = one and setting.in_force(one, now)
    return it and it.text or ''
  end

  -- alter: put a change into an entry. Replies which keys changed: { key, text before, text after, ... }, each once.
  function change.alter(ctx, c, entry, seq)
    local changes, before = {}, {}
    local function remember(key)
      if before[key] == nil then
        before[key] = value_of(entry, key, ctx.now)
        changes[#changes + 1] = key
      end
    end
    local gone = c.unset or {}
    if c.unset_all then
      gone = {}
      for key in pairs(entry.keys) do
        if key ~= 'pause' and key ~= 'close' then gone[#gone + 1] = key end
      end
    end
    for _, key in ipairs(gone) do
      if entry.keys[key] then
        remember(key)
        entry.keys[key] = nil
      end
    end
    for key, one in pairs(c.set or {}) do
      remember(key)
      local kept = entry.keys[key] or {}
      local new = {
        text = one.text, policy = one.policy, since = ctx.now_text, seq = seq, by = c.by, user = c.user,
        reason = c.reason,
      }
      if c.for_us then
        new.till = digits(ctx.now + c.for_us)
        kept.timed = new
      else
        kept.lasting = new
      end
      entry.keys[key] = kept
    end
    table.sort(changes)
    local reply = {}
    for _, key in ipairs(changes) do
      base.append(reply, key, before[key], value_of(entry, key, ctx.now))
    end
    return reply
  end

  local UNITS = { { 86400000000, 'd' }, { 3600000000, 'h' }, { 60000000, 'm' }, { 1000000, 's' }, { 1000, 'ms' } }

  -- how_long: a duration as operators write it, in the largest unit that keeps it whole.
  local function how_long(us)
    for _, unit in ipairs(UNITS) do
      if us % unit[1] == 0 then return digits(us / unit[1]) .. unit[2] end
    end
    return digits(us) .. 'us'
  end

  -- report: write the change as an event.
  local function report(ctx, c, changes)
    local before, after = {}, {}
    for i = 1, #changes, 3 do
      if changes[i + 1] ~= '' then before[#before + 1] = changes[i] .. '=' .. changes[i + 1] end
      if changes[i + 2] ~= '' then after[#after + 1] = changes[i] .. '=' .. changes[i + 2] end
    end
    if c.for_us then after[#after + 1] = 'for ' .. how_long(c.for_us) end
    local err = events.add(ctx.k, {
      what = c.what, match = c.match, before = table.concat(before, ' '), after = table.concat(after, ' '), by = c.by,
      user = c.user,
      reason = c.reason,
    })
    if err then context.note(ctx, 'refused', ctx.k.events, err) end
  end

  -- make_routes: create the streams of routes that a change names.
  local function make_routes(ctx, c)
    for _, one in pairs(c.set or {}) do
      if one.policy.route and not forward.of(ctx.rec, one.policy.route) then
        local err = route.make(ctx.space, one.policy.route)
        if err then return route.refuse(ctx.space, one.policy.route, err) end
      end
    end
  end

  local function newer(key)
    return refuse('BADARG', key .. ' was written by a newer version of dripd; use that one')
  end

  -- others_of: what is in force for the changed keys instead of their lasting value, as JSON: { <key>: { text, match,
  -- till } }; '' where nothing is.
  local function others_of(c, changes, winner_of)
    local others, any = {}, false
    for i = 1, #changes, 3 do
      local won = winner_of(changes[i])
      if won and (won.match ~= c.match or won.setting.till) then
        others[changes[i]], any = { text = won.setting.text, match = won.match, till = won.setting.till }, true
      end
    end
    return any and cjson.encode(others) or ''
  end

  -- answer: the third reply for a name whose policy is `p` now. glob_answer: for a glob: another glob that matches all
  -- of its buckets may pause or close them.
  local function answer(c, p, changes)
    if c.asks == 'others' then return others_of(c, changes, function(key) return p and p.set and p.set[key] end) end
    return p and p[c.asks or 'paused'] or ''
  end

  -- covers: whether a glob surely matches all that another one matches. A glob for budgets is in braces.
  local function covers(outer, inner)
    local of_outer, of_inner = chain.budget_of(outer), chain.budget_of(inner)
    if (of_outer == nil) ~= (of_inner == nil) then return false end
    outer, inner = of_outer or outer, of_inner or inner
    local kind, plain = glob.kind(outer)
    return outer ~= inner and kind == 'prefix' and sub(inner, 1, #plain) == plain
  end

  -- covering: the value of a key in the globs that cover this one: { setting, match } of the one that applies, or nil.
  local function covering(ctx, all, text, key)
    local won
    for other, entry in pairs(all.globs) do
      local one = covers(other, text) and entry.keys[key]
      local it = one and setting.in_force(one, ctx.now)
      if it and (not won or it.seq > won.setting.seq) then won = { setting = it, match = other } end
    end
    return won
  end

  local function glob_answer(ctx, c, all, entry, changes)
    if c.asks == 'others' then
      return others_of(c, changes, function(key)
        local it = entry.keys[key] and setting.in_force(entry.keys[key], ctx.now)
        return it and { setting = it, match = c.match } or covering(ctx, all, c.match, key)
      end)
    end
    local other = covering(ctx, all, c.match, c.asks == 'closed' and 'close' or 'pause')
    return other and other.match or ''
  end

  -- cannot_resolve: the refusal of a change after which a name (with the settings `entry`), or the buckets of a glob,
  -- would have no budget to leave through. For a template in the setting of a glob that cannot be known.
  local function cannot_resolve(ctx, c, entry)
    local within = c.set and c.set.within and c.set.within.policy.within
    if not within or within == '' then return end
    local p = entry and record.policy_at(ctx.rec, c.match, entry, ctx.now)
    local why = p and p.refused
    if not entry and not find(within, '{', 1, true) and not record.policy_of(ctx.rec, chain.id_of(within)) then
      why = 'no [[budget]] matches ' .. within
    end
    local budgets = not entry and chain.budget_of(c.match)
    if budgets and glob.matches(glob.compile(budgets), within) then
      local own = settings.of_name(ctx, chain.id_of(within)) -- the setting of an exact name wins
      if not own or not own.keys.within then why = 'its budgets form a circle: ' .. within end
    end
    if why then
      why = 'nothing could leave ' .. chain.bare(c.match) .. ': ' .. why
      return refuse('BADARG', why .. '; `dripd check` lists the budgets of a file')
    end
  end

  -- cannot_forward: the refusal of a setting that a bucket cannot have whose jobs are forwarded.
  local function cannot_forward(ctx, c, entry)
    local p = c.set
      and (ctx.rec.base or ctx.rec).forwards
      and not chain.budget_of(c.match)
      and record.policy_at(ctx.rec, c.match, entry, ctx.now)
    return p and p.forward and forward.refuse(p.forward, c.set, c.match)
  end

  -- set_name: store the settings of a name, and apply them. set_globs: the same for all globs.
  local function set_name(ctx, name, entry, was)
    settings.write_name(ctx, name, entry)
    recount.begin(ctx, name, was, policy_of(ctx.rec, name))
    ctx.policies_before = { [name] = was }
    reconcile(ctx, { name })
    ctx.policies_before = false
    settings.forget_if_none(ctx)
    context.wake(ctx.k)
  end

  local function set_globs(ctx, all)
    settings.write_globs(ctx, all, needs_rollout(ctx, all))
    context.renew(ctx)
    settings.forget_if_none(ctx)
    context.wake(ctx.k)
  end

  -- in_rollout: whether a rollout, of globs or of the record, is going on.
  local function in_rollout(ctx)
    return ctx.old_rec and (ctx.rollout or call('EXISTS', ctx.k.reached) == 1)
  end

  -- routes_of: create the streams of routes that an entry names. An error of a stream shows at its first dispatch.
  local function routes_of(ctx, entry)
    for _, one in pairs(entry.keys) do
      for _, it in pairs(one) do
        if it.policy.route and not forward.of(ctx.rec, it.policy.route) then route.make(ctx.space, it.policy.route) end
      end
    end
  end

  -- take_name, take_globs: store the settings of a name, or of globs, that the authority has, in another partition:
  -- JSON, '' where there are none. Replies whether it did: globs wait during a rollout.
  function change.take_name(ctx, name, json)
    if json ~= '' and call('HGET', ctx.k.settings, name) == json then return true end
    local entry = json ~= '' and setting.decode(json) or setting.new()
    if next(entry.keys) == nil and call('HEXISTS', ctx.k.settings, name) == 0 then return true end
    routes_of(ctx, entry)
    if policy_of(ctx.rec, name) then
      set_name(ctx, name, entry, bucket.policy_before(ctx, name))
    else
      settings.write_name(ctx, name, entry) -- a budget that is not in the configuration any more
    end
    return true
  end

  function change.take_globs(ctx, json)
    if (call('GET', ctx.k.globs) or '') == json then return true end
    if in_rollout(ctx) then return false end
    local all = json ~= '' and setting.decode(json) or { v = 1, seq = 0, globs = {} }
    for _, entry in pairs(all.globs) do routes_of(ctx, entry) end
    set_globs(ctx, all)
    return true
  end

  -- of_name: drip__set for an exact name.
  local function of_name(ctx, c)
    local entry, is_newer = settings.of_name(ctx, c.match)
    if is_newer then return newer(ctx.k.settings) end
    if next(c.set or {}) and not settings.room_for_name(ctx, c.match) then
      return refuse('TOOMANY', '100,000 names are set; `dripd unset` some, or set a glob')
    end
    if next(c.set or {}) and not policy_of(ctx.rec, c.match) then
      return chain.unknown(chain.budget_of(c.match))
    end
    entry = entry or setting.new()
    setting.without_over(entry, ctx.now)
    local was = bucket.policy_before(ctx, c.match) -- not later: the policies before would have the new settings then
    local changes = change.alter(ctx, c, entry, 0)
    local err = cannot_resolve(ctx, c, entry) or cannot_forward(ctx, c, entry) or make_routes(ctx, c)
    if err then return err end
    -- checks end here
    if #changes == 0 then return { 0, changes, answer(c, policy_of(ctx.rec, c.match), changes) } end
    set_name(ctx, c.match, entry, was)
    partition.changed(ctx.k, c.match, next(entry.keys) == nil)
    report(ctx, c, changes)
    return { 1, changes, answer(c, policy_of(ctx.rec, c.match), changes) }
  end

  -- of_glob: drip__set for a glob.
  local function of_glob(ctx, c)
    local all, is_newer = settings.of_globs(ctx)
    if is_newer then return newer(ctx.k.globs) end
    -- Only one rollout at a time. The end of settings becomes a part of this rollout, unless that is applied to a
    -- bucket already.
    if in_rollout(ctx) then return { -1, {}, '' } end
    all = settings.without_over(ctx, all or { v = 1, seq = 0, globs = {} })
    if next(c.set or {}) and not settings.room_for_glob(all, c.match) then
      return refuse('TOOMANY', '100 globs are set; `dripd unset` one')
    end
    local err = cannot_resolve(ctx, c) or make_routes(ctx, c)
    if err then return err end
    -- checks end here
    all.seq = all.seq + 1
    local entry = all.globs[c.match] or setting.new()
    local changes = change.alter(ctx, c, entry, all.seq)
    if #changes == 0 then return { 0, changes, glob_answer(ctx, c, all, entry, changes) } end
    all.globs[c.match] = next(entry.keys) and entry or nil
    set_globs(ctx, all)
    partition.changed(ctx.k, partition.GLOBS)
    report(ctx, c, changes)
    return { 1, changes, glob_answer(ctx, c, all, entry, changes) }
  end

  -- drip__set: set, or unset, keys of a name or a glob.
  -- keys   <prefix>:policy
  -- args   now_us, the change (JSON): what (set, unset, pause, ...), match, is_glob; set: { <key>: { text, policy } };
  --        unset: [ key ], or unset_all (not pause and close); for_us; by, user, reason; asks: 'paused', 'closed' or
  --        'others', for the third reply
  -- reply  { 1 (0: nothing changed, -1: busy, a rollout is going on), { key, text before, text after, ... }, the name
  --        or glob that pauses (or closes) the bucket, or all buckets of the glob, now; or, with 'others', what is in
  --        force instead of the value that was changed (JSON: { <key>: { text, match, till } }, '' = nothing) }
  -- errors BADARG TOOMANY WRONGTYPE
  -- cost   O(keys), and of one bucket a look
  function change.set(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    if not space then return refuse('BADARG', 'set takes the policy key') end
    local c, err = change.read(args[2])
    if err then return err end
    local ctx = context.open(space, args[1])
    local step = c.is_glob and of_glob or of_name
    return step(ctx, c)
  end
end
