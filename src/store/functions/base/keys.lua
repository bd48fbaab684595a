-- needs: base, base.names
-- Keys: only this file spells them.
--
-- In a partitioned system each key has the number of its partition after its first word, as a hash tag:
-- <prefix>:queue:{3}:<bucket>, <prefix>:schedule:{3}. (No name has a brace, so a tag is never part of a name.) All
-- other files get a `space` and pass it on: the prefix, or with partitions the prefix, a newline and the tag.
--
-- <prefix>:queue:<bucket>   list    public: the waiting jobs, newest at the left
-- <prefix>:ready[:<route>]  stream  public: dispatched jobs
-- <prefix>:rejected         stream  public: jobs that did not fit
-- <prefix>:dead             stream  public: jobs that were given up
-- <prefix>:schedule         zset    node -> due, of scheduled nodes
-- <prefix>:rest             zset    node -> due, of cooling nodes: without work, and the due in the future
-- <prefix>:held:<route>     zset    bucket -> due, where versions before 20 of this library kept held buckets (state)
-- <prefix>:paused           zset    node -> due, of nodes with work that an operator paused
-- <prefix>:refused          zset    node -> due, of nodes with work whose chain cannot be resolved
-- <prefix>:full             zset    node -> due, of blocked nodes: with work and no free slot (limits/slots)
-- <prefix>:slots            hash    <route> <entry id> -> the nodes of which the entry holds a slot
-- <prefix>:inflight         zset    node and entry, score 0: which entries hold a slot of a node
-- <prefix>:uncounted        hash    node whose limit is new, and whose entries are not counted yet -> a mark
--                           (limits/slots)
-- <prefix>:wait:<budget>{<route>}  zset    nodes queued for a share of a budget, in the order of their turns
--                           (state/waiting)
-- <prefix>:wait:{<route>}   zset    nodes that wait for a route, in the order of their turns (state/line)
-- <prefix>:waiting          hash    node -> its due, and the line in which it waits
-- <prefix>:budgets          hash    budget -> its state (tree/budget)
-- <prefix>:slow             hash    node -> its slow-down (limits/constraints)
-- <prefix>:windows          hash    node -> how much of its quotas was used
-- <prefix>:told             hash    node -> how much the other side says that it lets through (pace/told)
-- <prefix>:paid             hash    node -> the charge for its last job, where that was not one interval
-- <prefix>:adjusted         zset    entries whose cost was adjusted (jobs/adjust)
-- <prefix>:over             zset    node -> when the first of these constraints expires
-- <prefix>:settings         hash    node -> the settings of that name (policy/setting)
-- <prefix>:globs            string  the settings of globs
-- <prefix>:ends             zset    node -> when the first timed setting of that name ends
-- <prefix>:level            hash    bucket -> its allowance: how many jobs it may keep after its capacity was lowered
-- <prefix>:retry:<bucket>   zset    failed jobs by the end of their back-off
-- <prefix>:delayed:<bucket> zset    submitted jobs by the time for which they wait (queue/delayed)
-- <prefix>:retries          zset    bucket -> the first of those ends and times; +inf once it has passed and the bucket
--                           is scheduled
-- <prefix>:turns            hash    buckets in which the queue has the next turn while delayed jobs wait for theirs too
-- <prefix>:delays           string  how many delayed jobs wait in all buckets; absent: none
-- <prefix>:jobs:<bucket>    hash    id -> what is known of a submitted job that waits (queue/ids)
-- <prefix>:ids:<bucket>     zset    ids that producers gave, by the time of the accept
-- <prefix>:policy           hash    the record in force, the one before it during a rollout, the held routes
-- <prefix>:reached          hash    node -> when the rollout was applied to it
-- <prefix>:routes           set     routes whose streams are reaped
-- <prefix>:stats            hash    counters
-- <prefix>:wake             string  written when something may happen earlier than the daemons know
-- <prefix>:daemons          hash    the heartbeats
-- <prefix>:events           stream  what people changed while dripd runs, capped
-- <prefix>:changed          zset    at the authority: subject -> the number of its last change (base/partition)
-- <prefix>:unset            zset    the same for names that have no settings any more
-- <prefix>:gate:<limiter>:<n>:<bucket>  the state of a gate

local keys = {}
do
  local OPENS = 123 -- the byte with which a tag begins

  -- The words of keys: those with a name behind them, by what `of` calls their first part, and those without one; and
  -- what the key of a bucket, and one without a name, holds.
  local FIRST_PARTS = { queues = 'queue', retry = 'retry', held = 'held', wait = 'wait', gate = 'gate',
    delayed = 'delayed', jobs = 'jobs', ids = 'ids' }
  local OF_BUCKETS = { queues = 'list', retry = 'zset', delayed = 'zset', jobs = 'hash', ids = 'zset' }
  local WHOLE = { ready = 'stream', schedule = 'zset', rest = 'zset', level = 'hash', retries = 'zset', policy = 'hash',
    reached = 'hash', routes = 'set', stats = 'hash', rejected = 'stream', dead = 'stream', wake = 'string',
    daemons = 'hash', paused = 'zset', settings = 'hash', globs = 'string', ends = 'zset', events = 'stream',
    refused = 'zset', waiting = 'hash', budgets = 'hash', full = 'zset', slots = 'hash', inflight = 'zset',
    slow = 'hash', windows = 'hash', over = 'zset', changed = 'zset', unset = 'zset', turns = 'hash', delays = 'string',
    paid = 'hash', adjusted = 'zset', told = 'hash', uncounted = 'hash' }
  local is_word = {}
  at_first_call[#at_first_call + 1] = function()
    for _, word in pairs(FIRST_PARTS) do is_word[word] = true end
    for word in pairs(WHOLE) do is_word[word] = true end
  end

  local known, before, known_count = {}, {}, 0 -- by space, those used lately and those before; the texts are made once

  -- space_of: the space of a prefix and of a tag, if there is one.
  local function space_of(prefix, tag)
    if tag then return prefix .. '\n' .. tag end
    return prefix
  end

  -- key_of: the key with one of the words.
  local function key_of(prefix, tag, name)
    if tag then return prefix .. ':' .. name .. ':' .. tag end
    return prefix .. ':' .. name
  end

  -- make: the keys of a space.
  local function make(space)
    local prefix, tag = match(space, '^(.+)\n({%d+})$')
    if not tag then prefix = space end
    local k = { prefix = prefix, tag = tag or false }
    for name, word in pairs(FIRST_PARTS) do k[name] = key_of(prefix, tag, word) .. ':' end
    for word in pairs(WHOLE) do k[word] = key_of(prefix, tag, word) end
    return k
  end

  -- of: the keys of a space. `queues`, and fields like it, is the first part of the key of every queue.
  function keys.of(space)
    local k = known[space]
    if not k then
      if known_count >= 256 then known, before, known_count = {}, known, 0 end
      k = before[space] or make(space)
      known[space], known_count = k, known_count + 1
    end
    return k
  end

  -- of_partition: the keys of another partition of the same system.
  function keys.of_partition(k, number)
    return keys.of(space_of(k.prefix, '{' .. number .. '}'))
  end

  -- ready: the ready stream of a route.
  function keys.ready(space, route)
    local stream = keys.of(space).ready
    if route == 'default' then return stream end
    return stream .. ':' .. route
  end

  -- gate: the state of the n-th gate of one recipe, of a bucket.
  function keys.gate(space, limiter, n, bucket)
    return keys.of(space).gate .. limiter .. ':' .. n .. ':' .. bucket
  end

  -- space_before: the space of a key with one of the words, or nil.
  function keys.space_before(key, name)
    local prefix = match(key or '', '^(.+):' .. name .. '$')
    if prefix then return prefix end
    local tag
    prefix, tag = match(key or '', '^(.+):' .. name .. ':({%d+})$')
    if tag then return space_of(prefix, tag) end
  end

  -- split_queue: space and bucket of a queue's key. A prefix has no ":queue:", so the first one splits it.
  function keys.split_queue(key)
    local at, to = find(key, ':queue:', 1, true)
    if not at or at == 1 then return nil end
    if byte(key, to + 1) == OPENS then
      local tag, bucket = match(key, '^({%d+}):(.*)$', to + 1)
      if tag then return space_of(sub(key, 1, at - 1), tag), bucket end
    end
    return sub(key, 1, at - 1), sub(key, to + 1)
  end

  -- bucket_of: the space and the bucket of a call whose key is that of a queue; or nil twice and the refusal.
  function keys.bucket_of(redis_keys)
    local space, bucket = keys.split_queue(redis_keys[1] or '')
    if #redis_keys == 1 and space and names.is_bucket(bucket) then return space, bucket end
    return nil, nil, base.refuse('BADBUCKET', 'one key is needed: <prefix>:queue:<bucket>')
  end

  -- split_ready: space and route of a ready stream's key. A prefix does not end in ":ready".
  function keys.split_ready(key)
    local tag, prefix, route
    if find(key, '{', 1, true) then
      prefix, tag = match(key, '^(.+):ready:({%d+})$')
      if not tag then prefix, tag, route = match(key, '^(.+):ready:({%d+}):([%w%._-]+)$') end
    end
    if not tag then
      prefix = match(key, '^(.+):ready$')
      if not prefix or find(prefix, ':ready$') then prefix, route = match(key, '^(.+):ready:([%w%._-]+)$') end
    end
    if not prefix or find(prefix, ':ready$') or route and #route > 64 then return nil end
    return space_of(prefix, tag), route or 'default'
  end

  -- is_ours: whether a key looks like one of dripd's own, with a prefix that is in use here. A limiter must not write
  -- it.
  function keys.is_ours(key)
    local at = 1
    while true do
      at = find(key, ':', at + 1, true)
      if not at then return false end
      local word, after = match(key, '^(%l+)():?', at + 1)
      local whole_word = word and is_word[word] and (after > #key or byte(key, after) == 58)
      if whole_word then
        local prefix, tag = sub(key, 1, at - 1), match(key, '^:({%d+})', after)
        local space = space_of(prefix, tag)
        if prefix == 'drip' or known[space] or before[space] then return true end
        -- Refused where the caller lacks the right.
        if pcall_redis('EXISTS', key_of(prefix, tag, 'policy')) == 1 then return true end
      end
    end
  end

  -- of_wrong_type: the first of the keys of a space, and of one of its buckets, that holds something else than it must,
  -- and what it must hold; or nil. Redis does not say which key an error of a wrong type is about.
  -- cost  a call for each word
  function keys.of_wrong_type(space, bucket)
    local k, wanted, all = keys.of(space), {}, {}
    for word, type in pairs(WHOLE) do wanted[k[word]] = type end
    for part, type in pairs(bucket and OF_BUCKETS or {}) do wanted[k[part] .. bucket] = type end
    for key in pairs(wanted) do all[#all + 1] = key end
    table.sort(all)
    for _, key in ipairs(all) do
      local is = pcall_redis('TYPE', key).ok
      if is and is ~= 'none' and is ~= wanted[key] then
        return key, wanted[key] == 'zset' and 'sorted set' or wanted[key]
      end
    end
  end

  -- space_in: the space of any key without a name, or of a queue or a ready stream, and the bucket of a queue.
  function keys.space_in(key)
    local space, bucket = keys.split_queue(key)
    if space then return space, bucket end
    space = keys.split_ready(key)
    if space then return space end
    for word in pairs(WHOLE) do
      space = keys.space_before(key, word)
      if space then return space end
    end
  end
end
