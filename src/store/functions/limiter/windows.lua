-- needs: base, limiter
-- Window limiters: fixed, sliding, and the counter that approximates the sliding one.

do
  local digits, part, foreign = base.digits, limiter.part, limiter.foreign
  local LIMIT_MAX, PERIOD_MAX_MS = limiter.LIMIT_MAX, limiter.PERIOD_MAX_MS

  local encode, decode
  at_first_call[#at_first_call + 1] = function() encode, decode = struct.pack, struct.unpack end

  local function prepare_window(p)
    p.period = p.period_ms * 1000
  end

  -- drip_fixed_window: at most `limit` in each window. A window begins with the first call, or, ALIGNED, at multiples
  -- of the period since the epoch. Around the edge between two windows up to twice the limit may pass within one
  -- period: that is how a fixed window works. A change of the period, or of ALIGNED, changes where the stored window
  -- begins, not its count.
  -- keys   any key that is not dripd's
  -- args   limit period_ms [quantity] [ALIGNED]
  -- reply  { limited 0/1, limit, remaining, retry_after_ms or -1, reset_after_ms }
  -- errors BADARG WRONGTYPE OOM; nothing is changed
  -- state  'drpW', begin_us, count. The value tells when the window ends: a key that lost its expiry blocks nobody
  -- cost   O(1): TIME, GET, and SET when admitted
  local WINDOW = 0x64727057

  limiter.add('fixed-window', {
    parameters = { { name = 'limit', least = 1, most = LIMIT_MAX },
      { name = 'period_ms', least = 1, most = PERIOD_MAX_MS } },
    option = 'ALIGNED',
    prepare = prepare_window,

    read = function(s, key, now, p, aligned)
      local value = pcall_redis('GET', key)
      local period, begin, count = p.period, now, 0
      if aligned then begin = now - fmod(now, period) end
      if value then
        if #value ~= 20 then return foreign('fixed window') end
        local tag, stored, n = decode('>I4dd', value)
        if tag ~= WINDOW then return foreign('fixed window') end
        if aligned then stored = stored - fmod(stored, period) end
        -- A window that begins more than a period ahead is from before the clock was set back.
        if stored > now - period and stored <= now + period then begin, count = stored, n end
      end
      s.key, s.now, s.begin, s.count, s.free = key, now, begin, count, p.limit - count
    end,

    wait_ms = function(s, p) return ceil((s.begin + p.period - s.now) / 1000) end,
    reset_ms = function(s, p) return s.count == 0 and 0 or ceil((s.begin + p.period - s.now) / 1000) end,

    charge = function(s, p, quantity)
      s.count, s.free = s.count + quantity, s.free - quantity
      local ms = ceil((s.begin + p.period - s.now) / 1000)
      call('SET', s.key, encode('>I4dd', WINDOW, s.begin, s.count), 'PX', digits(ms))
    end,
  })

  -- drip_sliding_window: at most `limit` in every window of length `period`, exactly.
  -- keys   any key that is not dripd's
  -- args   limit (at most 10,000) period_ms [quantity]
  -- reply  { limited 0/1, limit, remaining, retry_after_ms or -1, reset_after_ms }
  -- errors BADARG WRONGTYPE OOM; nothing is changed
  -- state  a sorted set with an entry a call: score = when, member = "<units admitted before it, 16
  --        digits>:<quantity>". The running total makes each member unique. It also gives the number of units in force
  --        without counting: the units from the oldest entry in force to the newest
  -- cost   O(log n): TIME, ZRANGE, ZRANGEBYSCORE, and ZREMRANGEBYSCORE, ZADD, PEXPIRE when admitted; when refused, and
  --        more than the oldest entry must end, ZRANK, ZCARD and at most 15 ZRANGE
  local function entry_of(found)
    local before, quantity = match(found[1], '^(%d+):(%d+)$')
    if before and #before == 16 then return before + 0, quantity + 0, found[2] + 0 end
  end

  -- ends_us: how long until `need` of the units in force have ended: until the entry ends with which the total reaches
  -- `need`.
  local function ends_us(s, p, need)
    local at = s.oldest_at
    if s.oldest_quantity < need then
      local low, high = call('ZRANK', s.key, s.oldest), call('ZCARD', s.key) - 1
      if s.used == high - low + 1 then -- each entry is one unit
        low = low + need - 1
        high = low
      end
      while low < high do
        local middle = floor((low + high) / 2)
        local before, quantity = entry_of(call('ZRANGE', s.key, middle, middle, 'WITHSCORES'))
        if not before then error(foreign('sliding window')) end
        if before + quantity - s.base >= need then high = middle else low = middle + 1 end
      end
      at = call('ZRANGE', s.key, low, low, 'WITHSCORES')[2]
    end
    return at + p.period - s.now
  end

  limiter.add('sliding-window', {
    parameters = { { name = 'limit', least = 1, most = 10000 },
      { name = 'period_ms', least = 1, most = PERIOD_MAX_MS } },
    most = 10000,
    prepare = prepare_window,

    read = function(s, key, now, p)
      local newest = pcall_redis('ZRANGE', key, '-1', '-1', 'WITHSCORES')
      if newest.err then return foreign('sliding window') end
      s.key, s.now, s.total, s.used, s.newest_at, s.over = key, now, 0, 0, nil, nil
      if newest[1] then
        local before, quantity, at = entry_of(newest)
        if not before then return foreign('sliding window') end
        local cutoff = now - p.period
        -- A newest entry more than a period ahead is from before the clock was set back.
        if at > cutoff and at <= now + p.period then
          s.over = digits(cutoff)
          local oldest = call('ZRANGEBYSCORE', key, '(' .. s.over, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
          s.base, s.oldest_quantity, s.oldest_at = entry_of(oldest)
          if not s.base then return foreign('sliding window') end
          s.oldest, s.newest_at, s.total = oldest[1], at, before + quantity
          s.used = s.total - s.base
        else
          s.over = '+inf'
        end
      end
      s.free = p.limit - s.used
    end,

    wait_ms = function(s, p, quantity) return ceil(ends_us(s, p, s.used + quantity - p.limit) / 1000) end,
    reset_ms = function(s, p) return s.newest_at and ceil((s.newest_at + p.period - s.now) / 1000) or 0 end,

    charge = function(s, p, quantity)
      local at = max(s.now, s.newest_at or 0) -- in the order of the calls, also where the clock went back a little
      local member = format('%016.0f:%d', s.total, quantity)
      if s.over then call('ZREMRANGEBYSCORE', s.key, '-inf', s.over) end
      call('ZADD', s.key, digits(at), member)
      call('PEXPIRE', s.key, digits(ceil((at + p.period - s.now) / 1000)))
      if not s.newest_at then s.oldest, s.base, s.oldest_quantity, s.oldest_at = member, s.total, quantity, at end
      s.newest_at, s.total, s.used, s.free = at, s.total + quantity, s.used + quantity, s.free - quantity
    end,
  })

  -- drip_sliding_counter: two windows that begin at multiples of the period since the epoch. The previous one counts
  -- for the part of it that is left: previous * (1 - elapsed / period) + current + quantity <= limit. That assumes that
  -- the calls of the previous window were spread evenly, and is exact where they were. Otherwise up to 2 * limit - 1
  -- may pass within one period (a burst at the end of a window, then as many as its weight gives back, evenly), or up
  -- to `limit` too few (a burst at its beginning).
  -- keys   any key that is not dripd's
  -- args   limit period_ms [quantity]
  -- reply  { limited 0/1, limit, remaining, retry_after_ms or -1, reset_after_ms }
  -- errors BADARG WRONGTYPE OOM; nothing is changed
  -- state  'drpC', last_us, current, begin_us, previous: the count of the window that began at begin_us, whose last
  --        call was admitted at last_us, and the count of the window before. Under another period a count is taken to
  --        be as late as it can be
  -- cost   O(1): TIME, GET, and SET when admitted
  local COUNTER = 0x64727043
  -- What changes of the period may add up to; over any limit, and small enough for part().
  local COUNT_MAX = 2 * LIMIT_MAX

  limiter.add('sliding-counter', {
    parameters = { { name = 'limit', least = 1, most = LIMIT_MAX },
      { name = 'period_ms', least = 1, most = PERIOD_MAX_MS } },
    prepare = prepare_window,

    read = function(s, key, now, p)
      local value = pcall_redis('GET', key)
      local period, current, previous, used = p.period, 0, 0, 0
      local at, begin = now, now - fmod(now, period)
      if value then
        if #value ~= 36 then return foreign('sliding counter') end
        local tag, last, last_count, edge, edge_count = decode('>I4dddd', value)
        if tag ~= COUNTER then return foreign('sliding counter') end
        if last <= now + period then -- else it is from before the clock was set back
          if last > now then at, begin = last, last - fmod(last, period) end -- a little: continue from where it was
          if last >= begin then current = last_count elseif last >= begin - period then previous = last_count end
          if edge > begin then
            current = current + edge_count
          elseif edge > begin - period then
            previous = previous + edge_count
          end
          used = current
          if previous > 0 then
            previous = min(previous, COUNT_MAX)
            local weight, rest = part(previous, begin + period - at, period)
            used = used + weight + (rest > 0 and 1 or 0)
          end
        end
      end
      s.key, s.now, s.at, s.begin, s.current, s.previous, s.free =
        key, now, at, begin, current, previous, p.limit - used
    end,

    -- In this window the previous count must fall to what the current one leaves free. Where that is not enough, the
    -- current count must fall, as the previous one of the next window.
    wait_ms = function(s, p, quantity)
      local room, falls, from = p.limit - s.current - quantity, s.previous, s.begin
      if room < 0 then room, falls, from = p.limit - quantity, s.current, s.begin + p.period end
      return ceil((from + p.period - part(room, p.period, falls) - s.now) / 1000)
    end,

    reset_ms = function(s, p)
      if s.current > 0 then return ceil((s.begin + 2 * p.period - s.now) / 1000) end
      return s.previous > 0 and ceil((s.begin + p.period - s.now) / 1000) or 0
    end,

    charge = function(s, p, quantity)
      s.current, s.free = s.current + quantity, s.free - quantity
      local value = encode('>I4dddd', COUNTER, s.at, s.current, s.begin, s.previous)
      call('SET', s.key, value, 'PX', digits(ceil((s.begin + 2 * p.period - s.now) / 1000)))
    end,
  })
end
