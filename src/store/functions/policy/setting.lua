-- needs: base, policy.chain
-- Settings: what operators set at run time: how it is stored, and how it changes a policy. Nothing here calls Redis.
--
-- A setting is one key of one name or glob: { text, policy, since, by, user, reason }, and `till` where it is timed.
--   text    the value as an operator writes it            policy   the fields of a policy that it stands for
--   since   when it was set                               till     when it ends by itself
-- Both times are texts, because the JSON of Redis keeps only 14 digits of a number.
-- The settings of one name or glob are an entry: { v, keys = { <key> = { lasting, timed } } }. A timed setting
-- overrides the lasting one of the same key until it ends. Settings of globs are numbered by `seq`: for each key the
-- one set last wins.
-- `pause` and `close` apply whether a name or a glob sets them. For all other keys the exact name wins over globs.

local setting = {}
do
  local VERSION = 1
  local SMALL_STEP_US = 10000000 -- a small step of a clock

  -- The keys that can be set: those of a policy, and what stops a bucket.
  local KEYS = {
    rate = true, capacity = true, lease = true, attempts = true, backoff = true, overflow = true, route = true,
    catch_up = true,
    admit = true, within = true, weight = true, quota = true, concurrency = true, ordered = true, slow = true,
    dedup = true, ttl = true, cost_max = true, job_rate = true, told = true,
    pause = true, close = true,
  }

  function setting.is_key(key) return KEYS[key] == true end

  -- The fields that make a policy (policy/prepared derives the others from them), and what each may hold: whole numbers
  -- in a range, or values that pass a test.
  local DAY_US = 86400000000
  local WHOLE = {
    count = { 1, 50000000 }, period_us = { 1000, 366 * DAY_US }, capacity = { 1, 10000000 },
    lease_ms = { 1, 366 * DAY_US / 1000 },
    attempts = { 1, 1000 }, backoff_initial_us = { 0, 366 * DAY_US }, backoff_max_us = { 0, 366 * DAY_US },
    catch_up_us = { 0, 366 * DAY_US }, concurrency = { 0, 100000 }, weight = { 1, 1000 },
    dedup_us = { 1, 366 * DAY_US }, ttl_us = { 0, 366 * DAY_US },
    cost_max = { 0, 100000 },
    job_count = { 0, 50000000 }, job_period_us = { 0, 366 * DAY_US },
  }
  local function is_table(value) return type(value) == 'table' end
  local function is_bool(value) return type(value) == 'boolean' end
  local IS_GOOD = {
    overflow = function(text) return text == 'reject' or text == 'drop-oldest' end,
    route = function(text) return type(text) == 'string' and #text <= 64 and find(text, '^[%w_.-]+$') ~= nil end,
    told = function(text) return text == 'off' or text == 'stop' or text == 'spread' end,
    within = function(text) return type(text) == 'string' and #text <= 200 end,
    admit = is_table, quotas = is_table, slow = is_table, ordered = is_bool, catch_up_set = is_bool,
  }

  -- makes_sense: whether each of some fields of a policy has a valid value.
  function setting.makes_sense(fields)
    for name, value in pairs(fields) do
      local range, is_good = WHOLE[name], IS_GOOD[name]
      if range then
        if type(value) ~= 'number' or value % 1 ~= 0 or value < range[1] or value > range[2] then return false end
      elseif not is_good or not is_good(value) then
        return false
      end
    end
    return true
  end

  -- new: an entry without settings.
  function setting.new()
    return { v = VERSION, keys = {} }
  end

  -- decode: an entry, or the table of all globs, from its JSON; or nil and whether a newer version wrote it.
  function setting.decode(json)
    local ok, entry = pcall(cjson.decode, json)
    if not ok or type(entry) ~= 'table' or type(entry.v) ~= 'number' then return nil, false end
    if entry.v > VERSION then return nil, true end
    return entry
  end

  -- in_force: the setting of one key of an entry that applies at `now`, or nil.
  function setting.in_force(one, now)
    if one.timed and now < one.timed.till + 0 then return one.timed end
    return one.lasting
  end

  -- next_end: when the first timed setting of an entry ends, or `huge`. `after`: those that have ended by then do not
  -- count.
  function setting.next_end(entry, after)
    local first = huge
    for _, one in pairs(entry.keys) do
      local till = one.timed and one.timed.till + 0
      if till and till > (after or -huge) then first = min(first, till) end
    end
    return first
  end

  -- without_over: remove the settings of an entry that have ended at `now`. Replies whether any had ended, and whether
  -- any is left.
  function setting.without_over(entry, now)
    local dropped, left = false, false
    for key, one in pairs(entry.keys) do
      if one.timed and now >= one.timed.till + 0 then one.timed, dropped = nil, true end
      if one.timed or one.lasting then left = true else entry.keys[key] = nil end
    end
    return dropped, left
  end

  -- bring_back: a timed setting that was made later than now is from before the clock stepped back: from now on it
  -- lasts as long as it was made for. A small step changes nothing. Replies whether any setting of the entry was
  -- changed.
  function setting.bring_back(entry, now, now_text)
    local any = false
    for _, one in pairs(entry.keys) do
      local it = one.timed
      if it and it.since + 0 > now + SMALL_STEP_US then
        it.till, it.since, any = base.digits(it.till - it.since + now), now_text, true
      end
    end
    return any
  end

  -- winners: the setting of each key that applies: key -> { setting, match }. `own` is the entry of the exact name, or
  -- nil; `globs` is a list of { match, entry } of the globs that match.
  local function winners(own, own_now, globs, globs_now)
    local won, seqs = {}, {}
    for _, g in ipairs(globs) do
      for key, one in pairs(g.entry.keys) do
        local it = setting.in_force(one, globs_now)
        if it and it.seq > (seqs[key] or -1) then won[key], seqs[key] = { setting = it, match = g.match }, it.seq end
      end
    end
    for key, one in pairs(own and own.entry.keys or {}) do
      local it = setting.in_force(one, own_now)
      if it then won[key] = { setting = it, match = own.match } end
    end
    return won
  end

  -- apply: override a policy with the settings of a name: the fields of a new policy, with
  --   paused, closed   the name or glob that pauses or closes it
  --   set              which keys were set, by what: { setting, match }
  --   entry            the place of the [[bucket]] entry that the policy is from; nil: none
  --   stars_of         the name or glob for which its `within` is set: {n} is one of its stars; nil: those of the
  --                    entry's match
  -- Replies nil where no setting applies. Settings that `is_usable`, where it is given, rejects are left out.
  function setting.apply(p, own, own_now, globs, globs_now, is_usable)
    local won = winners(own, own_now, globs, globs_now)
    if next(won) == nil then return nil end
    local fields = { set = won, entry = p.entry, match = p.match, minute_cost = p.minute_cost }
    for _, known in ipairs({ WHOLE, IS_GOOD }) do
      for name in pairs(known) do fields[name] = p[name] end
    end
    -- They stand for its job_rate (policy/prepared).
    if p.ignores_cost then fields.count, fields.period_us = nil, nil end
    for key, one in pairs(won) do
      if key == 'pause' then
        fields.paused = one.match
      elseif key == 'close' then
        fields.closed = one.match
      elseif not is_usable or is_usable(one.setting.policy) then
        for name, value in pairs(one.setting.policy) do fields[name] = value end
        if key == 'within' then fields.stars_of = chain.bare(one.match) end
      end
    end
    if fields.closed then fields.capacity, fields.overflow = 0, 'reject' end
    return fields
  end

  -- till: when the first timed setting of those that apply ends, after `now`; nil where none ends.
  function setting.till(own, globs, now)
    local first = own and setting.next_end(own.entry, now) or huge
    for _, g in ipairs(globs) do first = min(first, setting.next_end(g.entry, now)) end
    return first < huge and first or nil
  end
end
