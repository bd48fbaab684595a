-- needs: base, base.keys, queue.rejecting
-- Daemons: which are alive. Each sends a heartbeat every few seconds. That of a killed daemon expires after 15 s.
--
-- <prefix>:daemons  hash  id of a daemon -> the time until which its heartbeat counts, a space, its own report (JSON)

local daemons = {}
do
  local refuse, clock, digits = base.refuse, base.clock, base.digits

  local COUNTS_US = 15000000
  local BEAT_FORMAT = '^(%d+) (.*)$'

  -- left_us: how long a heartbeat still counts, and its report; nil where it has expired. One that would count for
  -- longer than a heartbeat can is from before the clock stepped back: a living daemon sends another within seconds.
  local function left_us(heartbeat, now)
    local till, json = match(heartbeat, BEAT_FORMAT)
    local left = till and tonumber(till) - now or 0
    if left > 0 and left <= COUNTS_US then return left, json end
  end

  -- since_of: when a daemon was started, by its report; `huge` where it does not say so.
  local function since_of(json)
    local ok, report = pcall(cjson.decode, json)
    return ok and type(report) == 'table' and tonumber(report.since) or huge
  end

  -- drip__beat: the heartbeat of a daemon. An empty text says that the daemon stops.
  -- keys   <prefix>:daemons
  -- args   now_us, id, json
  -- reply  { how many daemons are alive, how many of them were started before this one, a number that changes when
  --        something was rejected }
  -- cost   O(daemons)
  function daemons.beat(redis_keys, args)
    local key, now, id, json = redis_keys[1] or '', clock(args[1]), args[2] or '', args[3] or ''
    local space = keys.space_before(key, 'daemons')
    if not space or id == '' or #id > 200 or #json > 4096 then
      return refuse('BADARG', 'beat takes <prefix>:daemons, an id of 1 to 200 bytes and a text of at most 4096')
    end
    local beats, over, alive, before, since = call('HGETALL', key), {}, json ~= '' and 1 or 0, 0, since_of(json)
    local is_new = json ~= ''
    for i = 1, #beats, 2 do
      local left, report = left_us(beats[i + 1], now)
      if beats[i] == id then is_new = false end
      if beats[i] == id and json == '' or beats[i] ~= id and not left then
        over[#over + 1] = beats[i]
      elseif beats[i] ~= id then
        alive = alive + 1
        local other = since_of(report)
        if other < since or other == since and beats[i] < id then before = before + 1 end
      end
    end
    -- checks end here
    base.write(call, 'HDEL', key, over)
    if json ~= '' then
      call('HSET', key, id, digits(now + COUNTS_US) .. ' ' .. json)
      call('PEXPIRE', key, COUNTS_US / 1000)
      -- Somebody may have flushed this Redis: a drain finds out whether the record is gone too.
      if is_new then call('INCR', keys.of(space).wake) end
    end
    return { alive, before, rejecting.news(space) }
  end

  -- count: how many daemons are alive, or an error.
  function daemons.count(key, now)
    local beats, n = pcall_redis('HVALS', key), 0
    if base.is_error(beats) then return beats end
    for _, heartbeat in ipairs(beats) do
      if left_us(heartbeat, now) then n = n + 1 end
    end
    return n
  end

  -- drip__daemons: the daemons that are alive.
  -- keys   <prefix>:daemons
  -- args   now_us
  -- reply  { id, json, age_ms (since its last heartbeat), ... }
  -- cost   O(daemons)
  function daemons.living(redis_keys, args)
    local key, now, list = redis_keys[1] or '', clock(args[1]), {}
    if not keys.space_before(key, 'daemons') then return refuse('BADARG', 'daemons takes <prefix>:daemons') end
    local beats = call('HGETALL', key)
    for i = 1, #beats, 2 do
      local left, json = left_us(beats[i + 1], now)
      if left then base.append(list, beats[i], json, floor((COUNTS_US - left) / 1000)) end
    end
    return list
  end
end
