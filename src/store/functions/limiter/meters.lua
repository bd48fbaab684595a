-- needs: base, limiter
-- Meters: they fill and drain evenly. Token bucket and leaky meter are the same thing, seen from opposite sides. The
-- throttle of redis-cell is the same again, with its own arithmetic and in seconds.

do
  local digits, part, foreign, refuse = base.digits, limiter.part, limiter.foreign, base.refuse
  local LIMIT_MAX, PERIOD_MAX_MS, EXACT = limiter.LIMIT_MAX, limiter.PERIOD_MAX_MS, limiter.EXACT

  local encode, decode
  at_first_call[#at_first_call + 1] = function() encode, decode = struct.pack, struct.unpack end

  -- drip_token_bucket, drip_leaky_meter: `capacity` at once, and count / period in the long run. A bucket that lacks n
  -- tokens and regains `count` of them in a period is a meter filled up to n that drains at the same rate.
  -- keys   any key that is not dripd's
  -- args   capacity count period_ms [quantity]
  -- reply  { limited 0/1, limit, remaining, retry_after_ms or -1, reset_after_ms }
  -- errors BADARG WRONGTYPE OOM; nothing is changed
  -- state  'drpM', at_us, lacking, parts, period_us: lacking + parts / period_us were missing at at_us. In parts of one
  --        period_us-th a microsecond gives back exactly `count` of them, so nothing is rounded or lost
  -- cost   O(1): TIME, GET, and SET when admitted

  -- regain_ms: how long until so many whole tokens and the parts are back, rounded up. Where their sum is too large to
  -- be exact, the milliseconds for the whole tokens are computed first, then their remainder and the parts.
  local function regain_ms(s, p, lacking)
    local behind_ms = ceil((s.at - s.now) / 1000)
    local all = lacking * p.period + s.parts
    if all < EXACT then return ceil(all / p.count_1000) + behind_ms end
    local ms, rest = part(lacking, p.period_ms, p.count)
    return ms + ceil((rest * 1000 + s.parts) / p.count_1000) + behind_ms
  end

  local METER = 0x6472704D

  local meter = {
    parameters = {
      { name = 'capacity', least = 1, most = LIMIT_MAX },
      { name = 'count', least = 1, most = LIMIT_MAX },
      { name = 'period_ms', least = 1, most = PERIOD_MAX_MS },
    },

    prepare = function(p)
      p.limit, p.period, p.count_1000 = p.capacity, p.period_ms * 1000, p.count * 1000
    end,

    read = function(s, key, now, p)
      local value = pcall_redis('GET', key)
      local lacking, parts, from = 0, 0, now
      if value then
        if #value ~= 36 then return foreign('token bucket or leaky meter') end
        local period, tag, at, of = p.period, nil, nil, nil
        tag, at, lacking, parts, of = decode('>I4dddd', value)
        if tag ~= METER then return foreign('token bucket or leaky meter') end
        -- Another period: the same share, in parts of this one.
        if of ~= period then parts = ceil(parts * period / of) end
        local elapsed = now - at
        if elapsed > 0 then
          local gain = elapsed * p.count
          if gain < EXACT then
            local back = floor(gain / period)
            lacking, parts = lacking - back, parts - (gain - back * period)
          else
            local beyond = fmod(elapsed, period)
            local back, back_parts = part(p.count, beyond, period)
            lacking, parts = lacking - back - (elapsed - beyond) / period * p.count, parts - back_parts
          end
        end
        if parts < 0 then
          lacking, parts = lacking - 1, parts + period
        elseif parts >= period then
          lacking, parts = lacking + 1, parts - period
        end
        if lacking < 0 then
          lacking, parts = 0, 0
        -- The clock was set back: nothing drains until it is there again, unless that takes too long.
        elseif elapsed < 0 then
          if -elapsed * p.count > lacking * period + parts then lacking, parts = 0, 0 else from = at end
        end
      end
      s.key, s.now, s.at, s.lacking, s.parts = key, now, from, lacking, parts
      s.free = p.limit - lacking - (parts > 0 and 1 or 0)
    end,

    wait_ms = function(s, p, quantity) return regain_ms(s, p, s.lacking + quantity - p.limit) end,
    reset_ms = function(s, p) return regain_ms(s, p, s.lacking) end,

    charge = function(s, p, quantity)
      s.lacking, s.free = s.lacking + quantity, s.free - quantity
      local value = encode('>I4dddd', METER, s.at, s.lacking, s.parts, p.period)
      call('SET', s.key, value, 'PX', digits(regain_ms(s, p, s.lacking)))
    end,
  }

  limiter.add('token-bucket', meter)
  limiter.add('leaky-meter', meter)

  -- throttle: redis-cell's CL.THROTTLE: the generic cell rate algorithm (GCRA), with the same replies to the same
  -- calls.
  -- state  'drpT', the time at which the bucket will be empty (TAT): microseconds since the epoch, nanoseconds
  -- cost   O(1): TIME, GET, and SET when admitted
  --
  -- Nanoseconds since the epoch do not fit into a double, so a time is a pair here: whole microseconds, as the clock
  -- gives them, and nanoseconds from 0 to 999. T, the interval, is computed in doubles, as redis-cell does.

  local THROTTLE = 0x64727054

  -- times: k intervals.
  local function times(p, k)
    local ns = p.t_n * k
    local carry = floor(ns / 1000)
    return p.t_us * k + carry, ns - carry * 1000
  end

  -- fits: how many intervals fit into a time.
  local function fits(p, us, ns)
    local all = us * 1000 + ns
    local k = floor(all / p.t_ns)
    if all < EXACT then return k end
    local function over(n)
      local n_us, n_ns = times(p, n)
      return n_us > us or (n_us == us and n_ns > ns)
    end
    while over(k) do k = k - 1 end
    while not over(k + 1) do k = k + 1 end
    return k
  end

  -- lack: how much time is missing for a refused quantity.
  local function lack(s, p, quantity)
    local us, ns = times(p, quantity)
    if ns < s.room_ns then return us - s.room_us - 1, ns - s.room_ns + 1000 end
    return us - s.room_us, ns - s.room_ns
  end

  local function ms_of(us, ns)
    return ceil((us + (ns > 0 and 1 or 0)) / 1000)
  end

  local throttle = {
    parameters = {
      { name = 'max_burst', least = 0, most = LIMIT_MAX - 1 },
      { name = 'count', least = 1, most = LIMIT_MAX },
      { name = 'period_s', least = 1, most = PERIOD_MAX_MS / 1000 },
    },

    prepare = function(p)
      p.limit, p.t_ns = p.max_burst + 1, floor(p.period_s * 1000000000 / p.count)
      p.t_n = fmod(p.t_ns, 1000)
      p.t_us = (p.t_ns - p.t_n) / 1000
      p.burst_us, p.burst_ns = times(p, p.limit)
    end,

    read = function(s, key, now, p)
      local value = pcall_redis('GET', key)
      local lead_us, lead_ns = 0, 0
      if now + p.burst_us >= EXACT then -- redis-cell's 64 bits of nanoseconds end soon after, in 2262
        return refuse('BADARG', 'max_burst: so many calls at count / period_s would take until after the year 2255')
      end
      if value then
        if #value ~= 20 then return foreign('throttle') end
        local tag, tat_us, tat_ns = decode('>I4dd', value)
        if tag ~= THROTTLE then return foreign('throttle') end
        if tat_us >= now then lead_us, lead_ns = tat_us - now, tat_ns end
      end
      local room_us, room_ns = p.burst_us - lead_us, p.burst_ns - lead_ns
      if room_ns < 0 then room_us, room_ns = room_us - 1, room_ns + 1000 end
      s.key, s.now, s.lead_us, s.lead_ns, s.room_us, s.room_ns = key, now, lead_us, lead_ns, room_us, room_ns
      s.free = room_us < 0 and -1 or fits(p, room_us, room_ns)
    end,

    wait_ms = function(s, p, quantity) return ms_of(lack(s, p, quantity)) end,
    reset_ms = function(s) return ms_of(s.lead_us, s.lead_ns) end,

    charge = function(s, p, quantity)
      local us, ns = times(p, quantity)
      local lead_us, lead_ns, room_us, room_ns = s.lead_us + us, s.lead_ns + ns, s.room_us - us, s.room_ns - ns
      if lead_ns >= 1000 then lead_us, lead_ns = lead_us + 1, lead_ns - 1000 end
      if room_ns < 0 then room_us, room_ns = room_us - 1, room_ns + 1000 end
      s.lead_us, s.lead_ns, s.room_us, s.room_ns, s.free = lead_us, lead_ns, room_us, room_ns, s.free - quantity
      local ms = ms_of(lead_us, lead_ns)
      call('SET', s.key, encode('>I4dd', THROTTLE, s.now + lead_us, lead_ns), 'PX', digits(ms))
    end,
  }

  limiter.add('throttle', throttle)

  -- drip_throttle: redis-cell's CL.THROTTLE, in its units and rounded as it rounds: seconds are rounded up where there
  -- is a whole millisecond beyond them; `remaining` is computed in whole microseconds.
  -- keys   any key that is not dripd's
  -- args   max_burst count period_s [quantity]
  -- reply  { limited 0/1, max_burst + 1, remaining, retry_after_s or -1, reset_after_s }
  -- errors BADARG WRONGTYPE OOM; nothing is changed
  function limiter.throttle_door()
    local s = {}
    return function(given_keys, args, now_us)
      local p, quantity = limiter.read(throttle, s, given_keys, args, now_us)
      if not p then return quantity end
      local limited, wait = 0, -1
      if quantity > s.free then
        limited = 1
        if quantity <= p.limit then wait = floor((lack(s, p, quantity) + 999000) / 1000000) end
      elseif quantity > 0 then
        throttle.charge(s, p, quantity)
      end
      return { limited, p.limit, max(0, floor(s.room_us / p.t_us)), wait, floor((s.lead_us + 999000) / 1000000) }
    end
  end
end
