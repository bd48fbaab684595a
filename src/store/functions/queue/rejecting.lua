-- needs: base, context.memory
-- Rejecting: which buckets reject most: about how many jobs of each name were rejected in the last 10 to 20 minutes.
--
-- The counts exist only in the memory of this server: a flood of rejected pushes must grow neither the data nor the
-- append-only file.
-- There are two halves: the young one counts the current ten minutes, the old one has the ten minutes before. A half
-- holds at most NAMES names, and its counts are exact until it is full. After that a new name takes over the place and
-- the count of the name with the lowest count ("space saving"). So no count is off by more than 1/NAMES of all that the
-- half has counted, and every name with more than that is among them.
--
-- A half is a heap with the lowest count at its root: names[i], counts[i], and at[name] = i; `size` names, `total`
-- rejected jobs. `since` is when the young half began.

local rejecting = {}
do
  local HALF_US = 600000000
  local NAMES = 1500 -- well below a power of two: a full Lua table is rebuilt at every second new name

  local news, news_count = {}, 0 -- by space

  local function fresh_half()
    return { names = {}, counts = {}, at = {}, size = 0, total = 0 }
  end

  -- halves: the two halves at this time, or nil where nothing was rejected. `makes`: make them then.
  local function halves(m, now, makes)
    local pair = m.rejecting
    if not pair then
      if not makes then return nil end
      memory.holds_much(m)
      pair = { young = fresh_half(), old = fresh_half(), since = now }
      m.rejecting = pair
    end
    if now < pair.since then pair.since = now end -- the clock stepped back
    if now >= pair.since + HALF_US then
      local over = floor((now - pair.since) / HALF_US)
      pair.old = over == 1 and pair.young or fresh_half()
      pair.young, pair.since = fresh_half(), pair.since + over * HALF_US
      if pair.old.total == 0 and not makes then
        m.rejecting = nil
        return nil
      end
    end
    return pair
  end

  -- sink: the count of the i-th name of a heap has grown: move it down, below names with lower counts.
  local function sink(half, i)
    local names, counts, at, size = half.names, half.counts, half.at, half.size
    local name, n = names[i], counts[i]
    while true do
      local child = i + i
      if child > size then break end
      if child < size and counts[child + 1] < counts[child] then child = child + 1 end
      if counts[child] >= n then break end
      names[i], counts[i], at[names[child]] = names[child], counts[child], i
      i = child
    end
    names[i], counts[i], at[name] = name, n, i
  end

  -- rise: add a name at the last place of a heap, and move it up, above names with higher counts.
  local function rise(half, name, n)
    local names, counts, at, i = half.names, half.counts, half.at, half.size
    while i > 1 do
      local parent = floor(i / 2)
      if counts[parent] <= n then break end
      names[i], counts[i], at[names[parent]] = names[parent], counts[parent], i
      i = parent
    end
    names[i], counts[i], at[name] = name, n, i
  end

  -- add: n more jobs of a bucket were rejected.
  -- reads, writes  memory      cost  O(log NAMES) table operations, no call
  function rejecting.add(ctx, name, n)
    local space, half = ctx.space, halves(ctx.memory, ctx.now, true).young
    if not news[space] then
      if news_count >= 256 then news, news_count = {}, 0 end
      news[space], news_count = 0, news_count + 1
    end
    news[space] = news[space] + 1
    half.total = half.total + n
    local i = half.at[name]
    if i then
      half.counts[i] = half.counts[i] + n
      sink(half, i)
    elseif half.size < NAMES then
      half.size = half.size + 1
      rise(half, name, n)
    else
      half.at[half.names[1]] = nil
      half.names[1], half.counts[1] = name, half.counts[1] + n
      sink(half, 1)
    end
  end

  -- of: about how many jobs of a bucket were rejected.
  function rejecting.of(pair, name)
    local young, old = pair.young.at[name], pair.old.at[name]
    return (young and pair.young.counts[young] or 0) + (old and pair.old.counts[old] or 0)
  end

  -- now_in: the halves for `of`, or nil where nothing was rejected.
  function rejecting.now_in(ctx)
    return halves(ctx.memory, ctx.now, false)
  end

  -- news: a number that changes when something was rejected in a space. A rejected push writes nothing that Redis could
  -- report, so the daemons get this number with each heartbeat (control/daemons).
  function rejecting.news(space)
    return news[space] or 0
  end

  -- page: some of the names with more than `floor_n` rejected jobs, from the place `from` of both halves on, the young
  -- half first. Replies the names, their counts, and where the next page begins, or nil. Names may move between two
  -- pages, but a name with a growing count only moves to a later place, so none of them is missed.
  function rejecting.page(ctx, from, most, floor_n)
    local pair, found, counts = halves(ctx.memory, ctx.now, false), {}, {}
    if not pair then return found, counts, nil end
    local young, old = pair.young, pair.old
    local last = young.size + old.size
    for i = from, min(last, from + most - 1) do
      local name = young.names[i] or old.names[i - young.size]
      if i <= young.size or not young.at[name] then
        local n = rejecting.of(pair, name)
        if n > floor_n then
          found[#found + 1], counts[#counts + 1] = name, n
        end
      end
    end
    return found, counts, from + most <= last and from + most or nil
  end
end
