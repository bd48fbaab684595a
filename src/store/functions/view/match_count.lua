-- needs: base, base.glob, base.keys, base.names, context, policy.chain, policy.record, route, state.waiting
-- Match counts: how many buckets that are not idle a name or a glob matches, and how many of their jobs have been
-- dispatched. A name or glob of budgets matches the buckets below them.

local match_count = {}
do
  local refuse, is_error = base.refuse, base.is_error
  local glance, policy_of = record.glance, record.policy_of

  local PAGE = 1000 -- entries in a call; of names a batch; fewer where the glob takes many steps
  local NAME_LONGEST, ABOVE = 200, 3 -- bytes of a name; budgets above a bucket

  -- sets_of: the sets of nodes with work.
  local function sets_of(ctx)
    local list = { ctx.k.schedule, ctx.k.paused, ctx.k.full, ctx.k.refused }
    if ctx.has_budgets or ctx.held ~= '' then list[#list + 1] = ctx.k.waiting end
    return list
  end

  -- streams_of: the ready streams.
  local function streams_of(ctx)
    local routes, list = pcall_redis('SMEMBERS', ctx.k.routes), {}
    if is_error(routes) then return list end
    table.sort(routes)
    for _, name in ipairs(routes) do list[#list + 1] = keys.ready(ctx.space, name) end
    return list
  end

  -- page_of: a page of a set, of about `most`: ids, and the next cursor, '0' at the end. A set that cannot be read
  -- counts as empty.
  local function page_of(ctx, key, cursor, most)
    if key == ctx.k.waiting then
      ctx.page = most
      local ok, ids, _, next_cursor = pcall(waiting.page, ctx, cursor)
      return ok and ids or {}, ok and next_cursor or '0'
    end
    local page = pcall_redis('ZSCAN', key, cursor, 'COUNT', most)
    if is_error(page) then return {}, '0' end
    return base.names_in(page[2]), page[1]
  end

  -- in_sets: how many buckets match, from a set and a cursor on. About a batch is read in a call, so few buckets move
  -- while they are counted. Replies the number, and where the next page begins; the set is past the last one at the
  -- end.
  local function in_sets(ctx, all, at, cursor, meets)
    local buckets, seen, most = 0, 0, min(ctx.limits.batch, meets.most)
    while all[at] and seen < most do
      local ids, next_cursor = page_of(ctx, all[at], cursor, most)
      meets.expect(ids)
      for _, id in ipairs(ids) do
        if not chain.budget_of(id) and meets.bucket(id) then buckets = buckets + 1 end
      end
      seen, cursor = seen + #ids, next_cursor
      if cursor == '0' then at = at + 1 end
    end
    return buckets, at, cursor
  end

  -- entries_after: entries of a stream after an id, at most so many, and none after a MiB was read. They are read one
  -- by one, then two at a time and so on, because the size of the next one is not known.
  local function entries_after(stream, from, most)
    local list, bytes, step = {}, 0, 1
    while #list < most and bytes < MIB do
      local read = call('XRANGE', stream, from, '+', 'COUNT', min(step, most - #list))
      local largest = 1
      for _, entry in ipairs(read) do
        list[#list + 1] = entry
        local size = 0
        for _, text in ipairs(entry[2]) do size = size + #text end
        bytes, largest, from = bytes + size, max(largest, size), '(' .. entry[1]
      end
      if #read < step then break end
      step = max(1, min(2 * step, floor((MIB - bytes) / largest)))
    end
    return list
  end

  -- distinct: the names in a table, each once.
  local function distinct(of)
    local list, seen = {}, {}
    for _, name in pairs(of) do
      if not seen[name] then list[#list + 1], seen[name] = name, true end
    end
    return list
  end

  -- in_stream: how many entries of a page are of buckets that match and are undelivered, and how many of them are with
  -- workers. Replies both, and where the next page begins, '0' at the end.
  local function in_stream(stream, cursor, meets)
    if is_error(pcall_redis('XLEN', stream)) or call('EXISTS', stream) == 0 then return 0, 0, '0' end
    local group = route.group_of(stream)
    local most = min(PAGE, meets.most)
    local entries = group and entries_after(stream, cursor == '0' and '-' or '(' .. cursor, most) or {}
    if #entries == 0 then return 0, 0, '0' end
    local first, last, pending = entries[1][1], entries[#entries][1], {}
    for _, row in ipairs(call('XPENDING', stream, 'workers', first, last, #entries)) do pending[row[1]] = true end
    local ready, held, of = 0, 0, {}
    for _, entry in ipairs(entries) do of[entry[1]] = base.by_name(entry[2]).bucket end
    meets.expect(distinct(of))
    for entry, name in pairs(of) do
      local is_met = meets.bucket(name)
      if is_met and pending[entry] then
        held = held + 1
      elseif is_met and names.is_after(entry, group['last-delivered-id']) then
        ready = ready + 1
      end
    end
    return ready, held, last
  end

  -- meets_of: the matcher of a name or a glob: `bucket(name)` says whether it matches a bucket; `expect(names)`: these
  -- are asked for next; `most`: how many names a call may ask for. For budgets it looks from below, at the budgets
  -- above a bucket: nothing lists what is below a budget.
  local function meets_of(ctx, text, is_glob)
    local budgets = chain.budget_of(text)
    local pieces = is_glob and glob.compile(budgets or text)
    local most = pieces and glob.texts_in(pieces, budgets and ABOVE * NAME_LONGEST or NAME_LONGEST) or huge
    local function matches(name)
      if pieces then return glob.matches(pieces, name) end
      return name == (budgets or text)
    end
    if not budgets then return { bucket = matches, expect = function() end, most = most } end
    local known = {} -- by the id of a budget: whether it, or one above it, matches
    local function is_met(id, levels)
      if not id or levels > chain.LEVELS_MOST then return false end -- a circle is no chain
      if known[id] == nil then
        local up = policy_of(ctx.rec, id)
        known[id] = matches(chain.budget_of(id)) or is_met(up and up.parent, levels + 1)
      end
      return known[id]
    end
    return {
      bucket = function(name) return names.is_bucket(name) and is_met(glance(ctx.rec, name).parent, 1) end,
      expect = function(list) record.expect(ctx.rec, list, true) end, most = most,
    }
  end

  -- drip__met: a page of the count.
  -- keys   <prefix>:policy
  -- args   now_us, name or glob (of budgets in braces: their buckets), "1": it is a glob, what: "buckets" | "jobs",
  --        cursor ('' = from the beginning)
  -- reply  { the next cursor ('' = that was all), buckets (0 with "jobs"), ready jobs, jobs with workers (0 with
  --        "buckets") }, of this page
  -- cost   O(batch) names; or O(PAGE) entries, at most 1 MiB of jobs or one job; fewer where a glob takes many steps
  function match_count.count(redis_keys, args)
    local space = keys.space_before(redis_keys[1], 'policy')
    if not space or not args[2] or #args[2] > glob.LONGEST + 2 then
      return refuse('BADARG', 'met takes the policy key, and a name or a glob of at most ' .. glob.LONGEST .. ' bytes')
    end
    local ctx, at, cursor = context.open(space, args[1]), match(args[5] or '', '^(%d+) (%S+)$')
    local meets, counts_buckets = meets_of(ctx, args[2], args[3] == '1'), args[4] == 'buckets'
    local all = counts_buckets and sets_of(ctx) or streams_of(ctx)
    at, cursor = tonumber(at or '1'), cursor or '0'
    if not all[at] then return { '', 0, 0, 0 } end
    local buckets, ready, held = 0, 0, 0
    if counts_buckets then
      buckets, at, cursor = in_sets(ctx, all, at, cursor, meets)
    else
      ready, held, cursor = in_stream(all[at], cursor, meets)
      if cursor == '0' then at = at + 1 end
    end
    return { all[at] and at .. ' ' .. cursor or '', buckets, ready, held }
  end
end
