-- needs: base, base.glob, policy.chain, policy.entry_index, policy.forward, policy.prepared, policy.setting
-- The record: the configuration in force, and the policy of each node.
--
-- The hash <prefix>:policy has these fields, among others:
--   id, record      the configuration in force (JSON, written whole by a daemon under a random id)
--   source          where that is from (src/model/source.rs)
--   prev_id, prev   the configuration before it, during its rollout (control/sweep)
--   prev_globs      the globs before a change of them, during its rollout
--   held            the routes with held buckets
--   settings        there where operators have set something (context/settings); it changes with each setting
-- An entry of [[bucket]] has only the keys that differ from [defaults].
--
-- A *view* is a record overridden by what operators have set. It has the same functions as a record.

local record = {}
do
  local seen, first_match = base.seen, entry_index.first_match

  -- Nodes whose policy is remembered, at least: as many as fit into the table that Lua makes for 100,000.
  local REMEMBERED = 131072
  local DIRECT_COST = 2 -- what finding an entry may cost where nothing is remembered (policy/entry_index)
  local BYTES_MOST = 16777216 -- of the JSON of the records that are kept decoded
  local SHARED = 10000 -- policies made by globs that are remembered, at most

  -- The configuration where no record is stored: no daemon has ever run.
  local BUILT_IN = {
    defaults = {
      count = 10, period_us = 1000000, capacity = 1000, lease_ms = 60000, attempts = 5,
      backoff_initial_us = 1000000, backoff_max_us = 600000000, overflow = 'reject', route = 'default',
      catch_up_us = 20000,
    },
    buckets = {},
    limits = { max_job_bytes = 1048576, rejected_keep = 10000, max_ready = 10000, batch = 100,
      ready_window_us = 250000 },
  }

  local OF_BUDGETS = { catch_up_us = BUILT_IN.defaults.catch_up_us } -- what applies to a budget that does not have it

  -- policy_of_entry: the policy of the n-th [[bucket]] or [[budget]] entry, made when it is first needed: there may be
  -- ten thousand.
  local function policy_of_entry(rec, n, is_budget)
    local entry = (is_budget and rec.budgets or rec.buckets)[n]
    if not entry.ready then
      entry.policy.entry, entry.policy.match = n, entry.match
      for key, value in pairs(is_budget and OF_BUDGETS or rec.written) do
        if entry.policy[key] == nil then entry.policy[key] = value end
      end
      entry.ready = prepared.policy(entry.policy, not is_budget and rec.forwards or nil)
      entry.ready.is_stopped = chain.is_stopped(entry.ready)
    end
    return entry.ready
  end

  -- raw: the policy that the record gives a node, without its chain; nil for a budget that no entry matches.
  local function raw(rec, id)
    local is_budget = byte(id, 1) == 123 -- chain.budget_of without its call: this runs for each job
    local entries, name = is_budget and rec.of_budgets or rec.of_buckets, is_budget and chain.budget_of(id) or id
    local place = first_match(entries, name)
    if place < huge then return policy_of_entry(rec, place, is_budget) end
    return not is_budget and rec.defaults or nil
  end

  -- search: the policy of a node that is not remembered.
  local function search(rec, id)
    local p = raw(rec, id)
    return p and chain.resolve(rec, p, id)
  end

  -- any_policy: whether a predicate is true of the policy of any entry.
  local function any_policy(rec, is_so)
    if is_so(rec.defaults) then return true end
    for _, list in ipairs({ rec.buckets, rec.budgets }) do
      for _, entry in ipairs(list) do
        if is_so(entry.policy) then return true end
      end
    end
    return false
  end

  -- written_slots: all that decides which nodes of a record limit what is in flight, as a text; '' where none does. It
  -- is made before policies are prepared, which changes them.
  local function written_slots(rec)
    local parts, any = {}, false
    local function add(match, p)
      any = any or (p.concurrency or 0) > 0
      base.append(parts, match, tostring(p.concurrency), tostring(p.route))
    end
    add('', rec.defaults)
    for _, list in ipairs({ rec.buckets, rec.budgets or {} }) do
      base.append(parts, '{')
      for _, entry in ipairs(list) do add(entry.match, entry.policy) end
    end
    for _, entry in ipairs(rec.routes or {}) do base.append(parts, '{', entry.name) end
    return any and table.concat(parts, '\n') or ''
  end

  -- prepare: make the tables in which a record is looked up.
  local function prepare(rec)
    rec.written, rec.slots_text = base.copy(rec.defaults), written_slots(rec)
    rec.forwards, rec.budgets = forward.index(rec.routes), rec.budgets or {}
    rec.limits.ready_window_us = rec.limits.ready_window_us or BUILT_IN.limits.ready_window_us -- else not stored
    prepared.policy(rec.defaults, rec.forwards)
    rec.of_buckets, rec.of_budgets = entry_index.of(rec.buckets), entry_index.of(rec.budgets)
    for n, entry in ipairs(rec.buckets) do
      if next(entry.policy.admit or {}) then policy_of_entry(rec, n, false) end -- so that an error is found now
    end
    rec.has_budgets, rec.raw, rec.resolved = rec.budgets[1] ~= nil, raw, {}
    -- Also where `concurrency` does not apply because the route forwards: another entry takes it over from the
    -- defaults, and may have another route.
    rec.has_slots = any_policy(rec, function(p) return ((p.as_written or p).concurrency or 0) > 0 end)
    rec.has_more = rec.has_budgets
      or rec.has_slots
      or any_policy(rec, function(p) return p.quotas and p.quotas[1] or (p.job_count or 0) > 0 end)
    rec.young, rec.old, rec.young_count, rec.search = {}, {}, 0, search
    rec.is_direct = max(rec.of_buckets.cost, rec.of_budgets.cost) <= DIRECT_COST
      and not any_policy(rec, function(p) return p.within end)
    rec.plain = #rec.buckets == 0 and not rec.defaults.within and rec.defaults or nil
    rec.defaults.is_stopped = rec.defaults.limited or rec.defaults.quotas or rec.defaults.job or rec.defaults.forward
    rec.quarter, rec.ended_us, rec.shortest_lease_ms = max(1, floor(rec.limits.batch / 4)), 0, rec.defaults.lease_ms
    for _, entry in ipairs(rec.buckets) do
      rec.shortest_lease_ms = min(rec.shortest_lease_ms, entry.policy.lease_ms or huge)
    end
    return rec
  end

  -- remember: remember the policy of a node.
  local function remember(rec, bucket, p)
    if p then
      local is_stopped = chain.is_stopped(p)
      if p.is_stopped ~= is_stopped then p.is_stopped = is_stopped end
    end
    if rec.young_count >= REMEMBERED then rec.young, rec.old, rec.young_count = {}, rec.young, 0 end
    rec.young[bucket], rec.young_count = p, rec.young_count + 1
  end

  -- policy_of: the policy that applies to a node. All other files ask here. Policies are remembered in two halves: when
  -- the young half is full it becomes the old one, and the old one is dropped. A policy that is asked for moves to the
  -- young half. So those of active nodes stay, and never all are forgotten at once. A record is
  -- direct where no node has a chain and few entries are compared with a name: there nothing is remembered, because
  -- that costs a job more than finding its policy again where names are many.
  function record.policy_of(rec, bucket)
    if rec.plain and byte(bucket, 1) ~= 123 then return rec.plain end -- a budget is never plain
    if rec.is_direct then return raw(rec, bucket) end
    local p, now = rec.young[bucket], rec.now -- a record that is no view has no time, and its policies do not end
    if p and (not now or not p.till or now < p.till) then return p end
    p = rec.old[bucket]
    if not p or p.till and rec.now >= p.till then p = rec.search(rec, bucket) end
    remember(rec, bucket, p)
    return p
  end

  -- glance: `policy_of` for a caller that goes through all nodes. It uses what is remembered, but adds nothing, because
  -- that would push out the active nodes.
  function record.glance(rec, bucket)
    if rec.plain and byte(bucket, 1) ~= 123 then return rec.plain end -- a budget is never plain
    local p = rec.young[bucket] or rec.old[bucket]
    if p and (not p.till or rec.now < p.till) then return p end
    return rec.search(rec, bucket, true)
  end

  -- remember_own: remember the settings of one name, false where it has none.
  local function remember_own(view, bucket, own)
    if view.own_count >= REMEMBERED then view.own_young, view.own_old, view.own_count = {}, view.own_young, 0 end
    view.own_young[bucket], view.own_count = own, view.own_count + 1
  end

  local function decode_own(bucket, json)
    local entry = type(json) == 'string' and setting.decode(json)
    return entry and { match = bucket, entry = entry } or false
  end

  -- own_entry: the settings of one name; nil where it has none. They are remembered like its policy, unless the caller
  -- is `passing`.
  local function own_entry(view, bucket, passing)
    local own = view.own_young[bucket]
    if own == nil and passing then own = view.passed[bucket] end
    if own == nil then
      own = view.own_old[bucket]
      if own == nil then own = decode_own(bucket, seen(pcall_redis('HGET', view.settings_key, bucket))) end
      if passing then return own or nil end
      remember_own(view, bucket, own)
    end
    return own or nil
  end

  -- expect: these nodes are needed next: read their settings in one call. For a `passing` caller they are forgotten
  -- with the next ones.
  function record.expect(rec, buckets, passing)
    local own, missing = rec.own_young, {}
    if not own then return end -- a record that is no view
    for _, bucket in ipairs(buckets) do
      if own[bucket] == nil and rec.own_old[bucket] == nil and not rec.young[bucket] then
        missing[#missing + 1] = bucket
      end
    end
    rec.passed = {}
    if #missing < 2 then return end
    local found, is_bare =
      seen(pcall_redis('HMGET', rec.settings_key, unpack(missing))), not rec.globs[1] and not rec.has_budgets
    if found.err then return end
    for i, bucket in ipairs(missing) do
      if passing then
        rec.passed[bucket] = decode_own(bucket, found[i])
      elseif is_bare and not found[i] then
        remember(rec, bucket, record.policy_of(rec.base, bucket))
      else
        remember_own(rec, bucket, decode_own(bucket, found[i]))
      end
    end
  end

  -- globs_of: the globs of a view that match a node. A glob for budgets is in braces, as a budget's id is.
  local function globs_of(view, id)
    local list, budget = {}, chain.budget_of(id)
    for _, g in ipairs(budget and view.budget_globs or view.globs) do
      if glob.matches(g.pieces, budget or id) then list[#list + 1] = g end
    end
    return list
  end

  -- is_usable: whether some fields, with the defaults, make a valid policy.
  function record.is_usable(fields)
    local p = base.copy(BUILT_IN.defaults)
    if not setting.makes_sense(fields) then return false end
    for name, value in pairs(fields) do p[name] = value end
    return (pcall(prepared.policy, p))
  end

  -- lay: a policy overridden by settings, and prepared; nil where none applies. Settings that are not valid here are
  -- left out, because a newer version may have set them; `view.unusable` notes that.
  local function lay(view, p, own, own_now, globs, globs_now)
    local function made(is_usable)
      local set = setting.apply(p.as_written or p, own, own_now, globs, globs_now, is_usable)
      return set and prepared.policy(set, (view.base or view).forwards)
    end
    local ok, set = pcall(made)
    if ok then return set end
    view.unusable = true
    return made(record.is_usable)
  end

  -- with_globs: a policy overridden by globs. It is made once for all nodes without other settings, because a policy
  -- for each would fill the memory. A hundred globs can combine in more ways than memory can hold: past a limit all are
  -- made anew.
  local function with_globs(view, p, globs)
    local name = globs[1].place
    for i = 2, #globs do name = name .. ' ' .. globs[i].place end
    if view.shared_count >= SHARED then view.shared, view.shared_count = {}, 0 end
    local of_p = view.shared[p]
    if not of_p then
      of_p = {}
      view.shared[p] = of_p
    end
    local set = of_p[name]
    if set and (not set.till or view.now < set.till) then return set end
    set = lay(view, p, nil, view.now, globs, view.now) or p
    local till = setting.till(nil, globs, view.now)
    if till then
      if set == p then set = base.copy(p) end
      set.till = till
    end
    of_p[name], view.shared_count = set, view.shared_count + 1
    return set
  end

  -- raw_view: `raw` for a view, at its time. The second reply is true where no other node has this policy, the third
  -- where it is the policy of the record itself.
  --   p.till   when the policy must be asked for again
  --   p.over   the policy before a timed setting of this name ended, where that has not been reconciled yet
  --            (context/settings)
  local function raw_view(view, id, passing)
    local p, own, globs = view.base.raw(view.base, id), own_entry(view, id, passing), globs_of(view, id)
    if not p then return nil, false, true end
    if not own then
      if not globs[1] then return p, false, true end
      return with_globs(view, p, globs), false, false
    end
    local set, till = lay(view, p, own, view.now, globs, view.now), setting.till(own, globs, view.now)
    local is_over = setting.next_end(own.entry) <= view.now
    if not set and not till and not is_over then return p, false, true end
    set = set or base.copy(p)
    set.till = till
    if is_over then set.over = lay(view, p, own, 0, globs, view.now) or p end
    return set, true, false
  end

  -- search_view: `search` for a view. A node without settings has the policy of the record itself, unless there are
  -- budgets, which may have settings.
  local function search_view(view, id, passing)
    local p, is_own, is_base = raw_view(view, id, passing)
    if is_base and not view.has_budgets then return (passing and record.glance or record.policy_of)(view.base, id) end
    return p and chain.resolve(view, p, id, is_own)
  end

  -- policy_at: the policy of a bucket at another time, with `entry` as the settings of its name, and when that ends.
  -- Nothing is remembered.
  function record.policy_at(rec, bucket, entry, at)
    local base_rec = rec.base or rec
    local p, globs = base_rec.raw(base_rec, bucket), rec.base and globs_of(rec, bucket) or {}
    local own = entry and { match = bucket, entry = entry }
    local set = lay(rec, p, own, at, globs, at) or base.copy(p)
    return chain.resolve(rec, set, bucket, true), setting.till(own, globs, at)
  end

  -- as_of: the policy of a node, without its chain, at an earlier time after the last change of globs. Settings of its
  -- own name that have ended since it was reconciled are still stored, and apply here.
  function record.as_of(view, id, at)
    local p = view.base.raw(view.base, id)
    return lay(view, p, own_entry(view, id), 0, globs_of(view, id), at) or p
  end

  -- look_at: set the time of a view. At time 0 all stored settings apply, because ended ones are stored until every
  -- bucket is reconciled. `ended_us` is the latest end of a setting of a glob that has ended, 0: none has.
  -- `first_ended_us` is the earliest such end.
  function record.look_at(view, now)
    if now < view.now then -- the clock stepped back: what had ended may not have ended yet
      view.young, view.old, view.young_count, view.shared, view.shared_count, view.resolved = {}, {}, 0, {}, 0, {}
    end
    view.now = now
    if now >= view.ended_us and now < view.next_us then return end
    view.ended_us, view.first_ended_us, view.next_us = 0, huge, huge
    for _, g in ipairs(view.all_globs) do
      for _, one in pairs(g.entry.keys) do
        local till = one.timed and one.timed.till + 0 or huge
        if till <= now then
          view.ended_us, view.first_ended_us = max(view.ended_us, till), min(view.first_ended_us, till)
        else
          view.next_us = min(view.next_us, till)
        end
      end
    end
  end

  -- view: a record overridden by settings. `globs` is the JSON of the globs, or nil. `names` is another view with the
  -- same settings of names, whose entries need not be read again.
  function record.view(rec, settings_key, globs, names)
    local view = {
      base = rec, defaults = rec.defaults, buckets = rec.buckets, budgets = rec.budgets, limits = rec.limits,
      quarter = rec.quarter, search = search_view,
      shortest_lease_ms = 1000, settings_key = settings_key, now = 0, ended_us = huge, next_us = 0, globs = {},
      budget_globs = {}, all_globs = {},
      shared = {}, shared_count = 0, resolved = {}, passed = {}, raw = raw_view, has_budgets = rec.has_budgets,
      young = {}, old = {},
      young_count = 0, own_young = names and names.own_young or {}, own_old = names and names.own_old or {},
      own_count = names and names.own_count or 0,
    }
    local decoded = globs and setting.decode(globs)
    for text, entry in pairs(decoded and decoded.globs or {}) do
      local budget = chain.budget_of(text)
      local list = budget and view.budget_globs or view.globs
      local g = { place = #list + 1, match = text, pieces = glob.compile(budget or text), entry = entry }
      list[#list + 1], view.all_globs[#view.all_globs + 1] = g, g
    end
    return view
  end

  -- forget: the settings of one name have changed. Those of a budget affect everything below it.
  function record.forget(view, id)
    view.own_young[id], view.own_old[id] = nil, nil
    if chain.budget_of(id) then
      view.young, view.old, view.young_count, view.resolved = {}, {}, 0, {}
    else
      view.young[id], view.old[id] = nil, nil
    end
  end

  -- slots_text: all that decides which nodes limit what is in flight, as a text, by a record or a view; but for
  -- settings of exact names.
  function record.slots_text(rec)
    if not rec.base then return rec.slots_text .. '\n' end
    local parts = {}
    for _, g in ipairs(rec.all_globs) do
      for _, key in ipairs({ 'concurrency', 'route' }) do
        local it = g.entry.keys[key] and setting.in_force(g.entry.keys[key], rec.now)
        if it then parts[#parts + 1] = g.match .. '\n' .. key .. '\n' .. it.text .. '\n' .. it.seq end
      end
    end
    table.sort(parts)
    return rec.base.slots_text .. '\n' .. table.concat(parts, '\n')
  end

  -- routes_of: the routes with a ready stream that a record names.
  function record.routes_of(rec)
    local routes = {}
    local function add(name) if name and not forward.of(rec, name) then routes[name] = true end end
    add(rec.defaults.route)
    for _, entry in ipairs(rec.buckets) do add(entry.policy.route) end
    return routes
  end

  -- names_route: whether a record names a route.
  function record.names_route(rec, name)
    rec = rec.base or rec
    rec.named = rec.named or record.routes_of(rec)
    return rec.named[name] ~= nil
  end

  -- decode: a record from its JSON, or nil.
  function record.decode(json)
    local ok, rec = pcall(cjson.decode, json)
    if not ok or type(rec) ~= 'table' or not rec.defaults then return nil end
    ok, rec = pcall(prepare, rec)
    if ok then return rec end
  end

  local built_in
  at_first_call[#at_first_call + 1] = function()
    record.built_in_json = cjson.encode(BUILT_IN)
    built_in = record.decode(record.built_in_json)
  end

  -- Decoded records by their random id, with the bytes of their JSON and the number of the call that last asked for
  -- each. What a library remembers outlives FLUSHALL and is shared by all databases. There may be many systems on a
  -- server, and decoding a record costs more than the rest of a call: so the one that nobody has asked for longest goes
  -- first.
  local by_id, bytes_of, used_at, bytes, uses = {}, {}, {}, 0, 0

  local function drop(id)
    bytes = bytes - bytes_of[id]
    by_id[id], bytes_of[id], used_at[id] = nil, nil, nil
  end

  -- make_room: drop as many records as it takes.
  local function make_room(size)
    while bytes > 0 and bytes + size > BYTES_MOST do
      local oldest
      for id, at in pairs(used_at) do
        if not oldest or at < used_at[oldest] then oldest = id end
      end
      drop(oldest)
    end
  end

  -- by_its_id: the record with an id, which is in a field of the policy key; the built-in one where there is none.
  function record.by_its_id(policy_key, id, field)
    if not id or id == 'built-in' then return built_in end
    local rec = by_id[id]
    if not rec then
      local json = call('HGET', policy_key, field) or ''
      rec = record.decode(json) or built_in
      make_room(#json + 1)
      by_id[id], bytes_of[id], bytes = rec, #json + 1, bytes + #json + 1
    end
    uses = uses + 1
    used_at[id] = uses
    return rec
  end
end
