-- needs: base, base.glob, base.names
-- Chains: a bucket and the budgets above it. Nothing here calls Redis.
--
-- A *node* is a bucket or a budget. Its *id* is its name for a bucket, and its name in braces for a budget: `twilio:a`
-- and `{twilio:a}`. No name can have a brace. Sets and hashes of nodes have ids.
-- The policy of a node with a parent is made for it (`resolve`), with
--   parent    the id of the budget above it
--   refused   why no job may leave it: its chain cannot be resolved

local chain = {}
do
  local LEVELS_MOST = 4 -- with the bucket
  local RESOLVED_MOST = 10000 -- policies that are remembered, of one record
  local CATCH_UP_US = 20000 -- the catch-up outside of budgets

  chain.LEVELS_MOST = LEVELS_MOST

  -- budget_of: the name of the budget with this id; nil for the id of a bucket.
  function chain.budget_of(id)
    if byte(id, 1) == 123 then return sub(id, 2, -2) end
  end

  -- bare: the name of a node, of a budget without its braces.
  function chain.bare(id) return chain.budget_of(id) or id end

  function chain.id_of(budget)
    return '{' .. budget .. '}'
  end

  -- unknown: the refusal of a budget that no entry matches.
  function chain.unknown(budget)
    local way_out = '`dripd check` lists those of a file, and `dripd reload` puts it into force'
    return base.refuse('BADARG', 'no [[budget]] of the configuration in force matches ' .. budget .. '; ' .. way_out)
  end

  -- template_of: the id that `within` makes of the name of a node, as a template: texts and numbers of stars by turns,
  -- the first and the last one a text. `pieces` is the glob with those stars, where there are any.
  local function template_of(p)
    local id, parts, from = chain.id_of(p.within), {}, 1
    if not find(p.within, '{', 1, true) then return { parts = { id } } end
    local pieces = glob.compile(p.stars_of or p.match or '')
    for at, digits, to in gmatch(id, '(){(%d+)}()') do
      local n = tonumber(digits)
      if n >= 1 and n < #pieces then
        parts[#parts + 1], parts[#parts + 2] = sub(id, from, at - 1), n
        from = to
      end
    end
    parts[#parts + 1] = sub(id, from)
    return { parts = parts, pieces = pieces }
  end

  -- parent_of: the id of the budget that `within` names. Where `within` is a template, each node with this policy may
  -- have another parent: {n} is what the n-th star matches in the name, of the entry's match, or of the glob for which
  -- `within` was set.
  local function parent_of(p, name)
    if not p.template then p.template = template_of(p) end
    local parts = p.template.parts
    local id, count = parts[1], #parts
    if count == 1 then return id end
    local found = glob.captures(p.template.pieces, name)
    for i = 2, count, 2 do id = id .. found[parts[i]] .. parts[i + 1] end
    return id
  end

  -- share_tag: whether a node and its budget are in one partition: both names have the same tag (base/partition).
  function chain.share_tag(cut, name, budget)
    return cut.partition_by > 0 and names.tag_of(name, cut.partition_by) == names.tag_of(budget, cut.partition_by)
  end

  -- look_up: walk the chain above a node. Replies why it cannot be resolved, or nil; and when the first setting of a
  -- budget above ends.
  local function look_up(rec, id, parent, policy_of)
    local till, seen = nil, { [id] = true }
    for level = 2, LEVELS_MOST + 1 do
      if not names.is_bucket(chain.budget_of(parent)) then -- a template may make any length
        return 'its budget would have a name of ' .. #chain.budget_of(parent) .. ' bytes, and a name has 1 to 200', till
      end
      if seen[parent] then return 'its budgets form a circle: ' .. chain.budget_of(parent), till end
      seen[parent] = true
      local above = policy_of(rec, parent)
      local cut = (rec.base or rec).cut
      if cut and not chain.share_tag(cut, chain.bare(id), chain.budget_of(parent)) then
        return 'budget ' .. chain.budget_of(parent) .. ' lives in another partition: the first ' .. cut.partition_by
          .. ' parts of both names must be the same', till
      end
      if not above then return 'no [[budget]] matches ' .. chain.budget_of(parent), till end
      if level > LEVELS_MOST then return 'it has more than ' .. LEVELS_MOST .. ' levels', till end
      if above.till then till = min(till or huge, above.till) end
      if not above.within then return nil, till end
      parent = parent_of(above, chain.budget_of(parent))
    end
  end

  -- above_is_limited: whether a budget above a node has a `concurrency`.
  local function above_is_limited(rec, parent)
    while parent do
      local above = rec.raw(rec, parent)
      if above.concurrency then return true end
      parent = above.within and parent_of(above, chain.budget_of(parent))
    end
    return false
  end

  -- is_stopped: whether no bucket with this policy takes the fast path (dispatch/fast_path).
  function chain.is_stopped(p)
    return p.paused or p.over or p.refused or p.limited or p.quotas or p.job or p.forward or false
  end

  -- catch_up_of: the lateness that a node makes up for. Inside a budget a node is often late because the budget was
  -- busy, and would lose its rate if it made up for nothing. So it may make up for one interval of its own, or two of
  -- its parent's, unless `catch_up` is configured.
  local function catch_up_of(rec, p, parent)
    local above = rec.raw(rec, parent)
    if p.catch_up_set or not above then return p.catch_up_us end
    return max(CATCH_UP_US, p.interval_us, 2 * above.interval_us)
  end

  -- fill: add to a policy what follows from its chain.
  local function fill(rec, p, id, parent)
    local till
    p.parent = parent
    p.refused, till = look_up(rec, id, parent, rec.raw)
    if till then p.till = min(p.till or huge, till) end
    if not p.refused and not p.forward and above_is_limited(rec, parent) then p.limited = true end
    return p
  end

  -- common_of: what the policies of all nodes with this entry and the same catch-up have in common (all but the
  -- parent), as their metatable. The fields that each job needs are copied into it. So a policy is small: there may be
  -- thousands, and a dispatch is the slower the more memory it touches.
  local function common_of(of_p, p, catch_up_us)
    local shared = of_p.shared[catch_up_us]
    if not shared then
      local common = {
        count = p.count, step = p.step, part = p.part, interval_us = p.interval_us, catch_up_us = catch_up_us,
        weight = p.weight,
        capacity = p.capacity, lease = p.lease, route = p.route, is_stopped = chain.is_stopped(p),
      }
      shared = { __index = setmetatable(common, { __index = p }) }
      of_p.shared[catch_up_us] = shared
    end
    return shared
  end

  -- resolve: the policy of a node with its chain. A node without a parent has its own policy; else all nodes with that
  -- policy and that parent share one. `is_own`: no other node has this policy, so it is changed in place.
  --   made_of   the common part: policies with the same one differ only in their parent, and in what follows from their
  --             chain
  function chain.resolve(rec, p, id, is_own)
    if not p.within then return p end
    local parent = parent_of(p, chain.bare(id))
    if is_own then
      p.catch_up_us = catch_up_of(rec, p, parent)
      return fill(rec, p, id, parent)
    end
    local of_p = rec.resolved[p]
    if not of_p then
      of_p = { by_parent = {}, shared = {} }
      rec.resolved[p] = of_p
    end
    local cut = (rec.base or rec).cut
    -- In a partitioned system two nodes with the same policy may differ: one may be in the partition of its budget, the
    -- other not.
    local key = cut and parent .. names.tag_of(chain.bare(id), cut.partition_by) or parent
    local made = of_p.by_parent[key]
    if not made or made.till and made.till <= (rec.now or 0) then
      local shared = common_of(of_p, p, catch_up_of(rec, p, parent))
      made = fill(rec, setmetatable({ parent = parent, made_of = shared.__index }, shared), id, parent)
      of_p.by_parent[key] = made
      rec.resolved_count = (rec.resolved_count or 0) + 1
      if rec.resolved_count > RESOLVED_MOST then rec.resolved, rec.resolved_count = {}, 0 end
    end
    return made
  end
end
