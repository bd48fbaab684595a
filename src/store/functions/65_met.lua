-- Met: which buckets that are not idle a name or a glob meets, and how many of their jobs are out already.

local met = {}
do
  local refuse, is_error = base.refuse, base.is_error

  local PAGE = 1000 -- entries in a call; of names a batch

  -- sets_of: where buckets with work stand.
  local function sets_of(ctx)
    local list = { ctx.k.schedule, ctx.k.paused, ctx.k.full }
    for _, name in ipairs(route.names_of(ctx.held)) do list[#list + 1] = ctx.k.held .. name end
    return list
  end

  -- streams_of: the ready streams.
  local function streams_of(ctx)
    local routes, list = pcall_redis('SMEMBERS', ctx.k.routes), {}
    if is_error(routes) then return list end
    table.sort(routes)
    for _, name in ipairs(routes) do list[#list + 1] = keys.ready(ctx.prefix, name) end
    return list
  end

  -- in_set: how many names of a page match. Replies that and where the next page begins, '0' at the end.
  local function in_set(ctx, key, cursor, matches)
    local page, n = pcall_redis('ZSCAN', key, cursor, 'COUNT', ctx.limits.batch), 0
    if is_error(page) then return 0, '0' end
    for i = 1, #page[2], 2 do
      if not chain.budget_of(page[2][i]) and matches(page[2][i]) then n = n + 1 end
    end
    return n, page[1]
  end

  -- entries_after: entries of a stream from an id on, at most PAGE, and no more once a MiB was read. They are read one by one, then
  -- two at a time and so on, for nothing tells how large the next one is.
  local function entries_after(stream, from)
    local list, bytes, step = {}, 0, 1
    while #list < PAGE and bytes < MIB do
      local read = call('XRANGE', stream, from, '+', 'COUNT', min(step, PAGE - #list))
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

  -- in_stream: how many entries of a page of buckets that match are undelivered, and with workers. Replies these and where the next
  -- page begins, '0' at the end.
  local function in_stream(stream, cursor, matches)
    if is_error(pcall_redis('XLEN', stream)) or call('EXISTS', stream) == 0 then return 0, 0, '0' end
    local group = route.group_of(stream)
    local entries = group and entries_after(stream, cursor == '0' and '-' or '(' .. cursor) or {}
    if #entries == 0 then return 0, 0, '0' end
    local first, last, pending = entries[1][1], entries[#entries][1], {}
    for _, row in ipairs(call('XPENDING', stream, 'workers', first, last, #entries)) do pending[row[1]] = true end
    local ready, held = 0, 0
    for _, entry in ipairs(entries) do
      local fields = entry[2]
      for i = 1, #fields, 2 do
        if fields[i] == 'bucket' and matches(fields[i + 1]) then
          if pending[entry[1]] then
            held = held + 1
          elseif names.is_after(entry[1], group['last-delivered-id']) then
            ready = ready + 1
          end
        end
      end
    end
    return ready, held, last
  end

  -- drip__met: a page of the count.
  -- keys   <prefix>:policy
  -- args   now_us, name or glob, "1": it is a glob, what: "buckets" | "jobs", cursor ('' = from the beginning)
  -- reply  { the next cursor ('' = that was all), buckets (0 with "jobs"), ready jobs, jobs with workers (0 with "buckets") }, of this page
  -- cost   O(batch) names; or O(PAGE) entries, at most 1 MiB of jobs or one job
  function met.count(redis_keys, args)
    local prefix = keys.prefix_of(redis_keys[1], 'policy')
    if not prefix or not args[2] then return refuse('BADARG', 'met takes the policy key, and a name or a glob') end
    local ctx, at, cursor = context.open(prefix, args[1]), match(args[5] or '', '^(%d+) (%S+)$')
    local pieces = args[3] == '1' and glob.compile(args[2])
    local function matches(name)
      if pieces then return glob.matches(pieces, name) end
      return name == args[2]
    end
    local counts_buckets = args[4] == 'buckets'
    local all = counts_buckets and sets_of(ctx) or streams_of(ctx)
    at, cursor = tonumber(at or '1'), cursor or '0'
    local place = all[at]
    if not place then return { '', 0, 0, 0 } end
    local buckets, ready, held = 0, 0, 0
    if counts_buckets then
      buckets, cursor = in_set(ctx, place, cursor, matches)
    else
      ready, held, cursor = in_stream(place, cursor, matches)
    end
    if cursor == '0' then at = at + 1 end
    return { all[at] and at .. ' ' .. cursor or '', buckets, ready, held }
  end
end
