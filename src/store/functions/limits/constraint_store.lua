-- needs: base, context, pace.paid, pace.quota, pace.slowdown, pace.told, policy.record
-- Constraint store: how the constraints of nodes (limits/constraints) are read, written and dropped.
--
-- A constraint has some of these parts, each in a hash of its own (PARTS). <prefix>:over has for each node when the
-- first of them can be dropped. Each text begins with the version of its format and "<pace>/<held>"
-- (limits/constraints). The field `brakes` of the policy key has the flag of each part that is stored at all, so that
-- nothing is read where nothing is stored.

local constraint_store = {}
do
  local digits = base.digits

  local VERSION = '1'
  local HEAD = '^(%d+) (%d+)/(%d+) ?(.*)$'
  local FORGET_MOST = 100 -- nodes in a call

  -- The parts: the field of a constraint, its key, its flag, and the file that encodes it. `had`: the field that says
  -- that the text is stored; `has`: the field of a context that says that any is.
  local PARTS = {
    { field = 'slowdown', key = 'slow', flag = 's', of = slowdown, had = 'had_slow', has = 'has_slow' },
    { field = 'paid', key = 'paid', flag = 'p', of = paid, had = 'had_paid', has = 'has_paid' },
    { field = 'told', key = 'told', flag = 't', of = told, had = 'had_told', has = 'has_told' },
    { field = 'windows', key = 'windows', flag = 'q', of = quota, had = 'had_windows', has = 'has_windows' },
  }
  local NONE = {}

  -- part_of: a part of a constraint from its text; nil where it has none.
  local function part_of(ctx, constraint, part, text)
    local version, pace, held, body = match(text, HEAD)
    if version ~= VERSION then
      context.note(ctx, 'newer', ctx.k[part.key])
      constraint.is_newer = true -- it is left alone
      return nil
    end
    if pace ~= '0' then constraint.pace, constraint.held = pace + 0, held + 0 end
    return part.of.decode(body)
  end

  local function expires_at(constraint)
    local over = huge
    for i = 1, #PARTS do
      local part = PARTS[i]
      local it = constraint[part.field]
      if it then over = min(over, part.of.expires_at(it)) end
    end
    return over
  end

  -- is_any: whether any part of any constraint is stored.
  function constraint_store.is_any(ctx)
    return ctx.has_slow or ctx.has_paid or ctx.has_told or ctx.has_windows
  end

  -- change: mark a constraint to be written at the end of the call.
  function constraint_store.change(ctx, constraint)
    if constraint.changed then return end
    ctx.changed_constraints = ctx.changed_constraints or {}
    constraint.changed, ctx.changed_constraints[#ctx.changed_constraints + 1] = true, constraint
  end

  -- reconcile: bring a slow-down and told limits up to date. Replies whether they must be written.
  function constraint_store.reconcile(ctx, constraint)
    local d, t, changed = constraint.slowdown, constraint.told, false
    if d then changed = slowdown.reconcile(d, ctx.now) end
    if t and told.reconcile(t, ctx.now) then changed = true end
    if d and slowdown.expires_at(d) <= ctx.now then constraint.slowdown = nil end
    if constraint.paid then paid.cool(constraint.paid, ctx.now) end
    if t and told.expires_at(t) <= ctx.now then constraint.told = nil end
    if changed then constraint_store.change(ctx, constraint) end
    return changed
  end

  -- read: the constraints of some nodes, in their order; false where nothing is stored.
  -- reads   the hash of each part      cost  1 call each, where there are any
  function constraint_store.read(ctx, ids)
    local texts, found = {}, {}
    for n, part in ipairs(PARTS) do texts[n] = ctx[part.has] and call('HMGET', ctx.k[part.key], unpack(ids)) or NONE end
    for i = 1, #ids do
      local constraint = false
      for n = 1, #PARTS do
        local text, part = texts[n][i], PARTS[n]
        if text then
          constraint = constraint or { id = ids[i] }
          constraint[part.field], constraint[part.had] = part_of(ctx, constraint, part, text), true
        end
      end
      if constraint then
        constraint.over = expires_at(constraint)
        constraint_store.reconcile(ctx, constraint)
      end
      found[i] = constraint
    end
    return found
  end

  -- write_flags: note in the policy key what is stored: the parts, and new limits (limits/slots).
  function constraint_store.write_flags(ctx)
    local text = ctx.has_uncounted and 'c' or ''
    for _, part in ipairs(PARTS) do
      if ctx[part.has] then text = text .. part.flag end
    end
    if text == '' then call('HDEL', ctx.k.policy, 'brakes') else call('HSET', ctx.k.policy, 'brakes', text) end
  end

  -- flag: the parts of which `is_there` is true are stored.
  local function flag(ctx, is_there)
    local is_other = false
    for n, part in ipairs(PARTS) do
      if is_there[n] ~= ctx[part.has] then ctx[part.has], is_other = is_there[n], true end
    end
    if is_other then constraint_store.write_flags(ctx) end
  end

  -- put: the text of a part to be written, into `add`; where it was stored and is no longer, its node into `gone`.
  local function put(ctx, constraint, part, add, gone)
    local it = constraint[part.field]
    if it and part.of.expires_at(it) <= ctx.now then
      constraint[part.field], it = nil, nil
    end
    if it then
      local head = constraint.pace and digits(constraint.pace) .. '/' .. digits(constraint.held) or '0/0'
      add[#add + 1], add[#add + 2] = constraint.id, VERSION .. ' ' .. head .. ' ' .. part.of.encode(it, ctx.now)
    elseif constraint[part.had] then
      gone[#gone + 1] = constraint.id
    end
    constraint[part.had] = it ~= nil
  end

  -- put_over: the same for when the first part of a constraint can be dropped.
  local function put_over(ctx, constraint, add, gone)
    local at = expires_at(constraint)
    if at == huge then
      gone[#gone + 1] = constraint.id
    elseif at ~= constraint.over then
      add[#add + 1], add[#add + 2] = digits(at), constraint.id
    end
    constraint.over = at
    if at < ctx.memory.over_us then ctx.memory.over_us = at end
  end

  -- flush: write what changed.
  -- writes  the hash of each part, over, the policy key      cost  at most 2 calls for each of them
  function constraint_store.flush(ctx)
    local list, is_there = {}, {}
    for _, constraint in ipairs(ctx.changed_constraints) do
      constraint.changed = false
      if not constraint.is_newer then list[#list + 1] = constraint end
    end
    ctx.changed_constraints = false
    for n, part in ipairs(PARTS) do
      local add, gone = {}, {}
      for i = 1, #list do put(ctx, list[i], part, add, gone) end
      base.write(call, 'HDEL', ctx.k[part.key], gone)
      base.write(call, 'HSET', ctx.k[part.key], add)
      is_there[n] = ctx[part.has] or add[1] ~= nil
    end
    local add, gone = {}, {}
    for i = 1, #list do put_over(ctx, list[i], add, gone) end
    base.write(call, 'ZREM', ctx.k.over, gone)
    base.write(call, 'ZADD', ctx.k.over, add)
    flag(ctx, is_there)
  end

  -- drop_expired: drop constraints that have expired. Replies whether more could be dropped.
  -- reads, writes  as `flush`      cost  O(FORGET_MOST), where something has expired; else none
  function constraint_store.drop_expired(ctx)
    local m = ctx.memory
    if not constraint_store.is_any(ctx) or ctx.now < m.over_us then return false end
    local over, is_there = ctx.k.over, {}
    local ids = call('ZRANGE', over, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', FORGET_MOST)
    if ids[1] then
      for i, constraint in ipairs(constraint_store.read(ctx, ids)) do
        if constraint and not constraint.is_newer then
          constraint.over = nil -- whatever is written there
          constraint_store.change(ctx, constraint)
        else
          call('ZREM', over, ids[i])
        end
      end
      if ctx.changed_constraints then constraint_store.flush(ctx) end
    end
    m.over_us = base.first_score(over)
    for n, part in ipairs(PARTS) do is_there[n] = call('EXISTS', ctx.k[part.key]) == 1 end
    flag(ctx, is_there)
    return #ids == FORGET_MOST
  end

  -- as_settings: the slow-down and the told limits of a node that apply, each as a timed setting by its key.
  function constraint_store.as_settings(ctx, constraint, p)
    local found = {}
    local d, t = constraint and constraint.slowdown, constraint and constraint.told
    if d and slowdown.applies(d, p, ctx.now) then found['slow-down'] = slowdown.as_setting(d, p) end
    if t then found['told-limit'] = told.as_setting(t, p, ctx.now) end
    return found
  end

  -- page: one page of them: { id, key, setting } each, and the next cursor, '' = that was all. The cursor is the flag
  -- of the part whose nodes are read, and a cursor of HSCAN.
  function constraint_store.page(ctx, cursor)
    local flag_of, list = sub(cursor, 1, 1), {}
    local part = flag_of == 's' and { 'slow', 'slow-down' } or { 'told', 'told-limit' }
    local page = call('HSCAN', ctx.k[part[1]], sub(cursor, 2), 'COUNT', ctx.limits.batch)
    local ids = base.names_in(page[2])
    for i, constraint in ipairs(ids[1] and constraint_store.read(ctx, ids) or {}) do
      local p = record.policy_of(ctx.rec, ids[i])
      local it = p and constraint_store.as_settings(ctx, constraint, p)[part[2]]
      if it then list[#list + 1] = { id = ids[i], key = part[2], setting = it } end
    end
    if page[1] ~= '0' then return list, flag_of .. page[1] end
    return list, flag_of == 's' and ctx.has_told and 't0' or ''
  end
end
