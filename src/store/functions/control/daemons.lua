-- needs: base, base.keys, queue.rejecting
-- Daemons: which of them are alive. Each tells it every few seconds; what a killed one said is over after 15 s.
--
-- <prefix>:daemons  hash  id of a daemon -> the time until which its beat counts, a space, what it says of itself (JSON)

local daemons = {}
do
  local refuse, clock, digits = base.refuse, base.clock, base.digits

  local COUNTS_US = 15000000
  local BEAT_FORMAT = '^(%d+) (.*)$'

  -- left_us: for how long a beat still counts, and what it says; nil for one that is over. One that counts for longer than a
  -- beat can was made before the clock stepped back: a living daemon makes another within seconds.
  local function left_us(beat, now)
    local till, json = match(beat, BEAT_FORMAT)
    local left = till and tonumber(till) - now or 0
    if left > 0 and left <= COUNTS_US then return left, json end
  end

  -- since_of: when a daemon was started, as it says; one that does not say it comes last.
  local function since_of(json)
    local ok, said = pcall(cjson.decode, json)
    return ok and type(said) == 'table' and tonumber(said.since) or huge
  end

  -- drip__beat: a daemon is alive, or says with an empty text that it stops.
  -- keys   <prefix>:daemons
  -- args   now_us, id, json
  -- reply  { how many daemons are alive, how many of them were started before this one, a number that is another one when something was
  --          rejected since }
  -- cost   O(daemons)
  function daemons.beat(redis_keys, args)
    local key, now, id, json = redis_keys[1] or '', clock(args[1]), args[2] or '', args[3] or ''
    local space = keys.space_before(key, 'daemons')
    if not space or id == '' or #id > 200 or #json > 4096 then
      return refuse('BADARG', 'beat takes <prefix>:daemons, an id of 1 to 200 bytes and a text of at most 4096')
    end
    local beats, over, alive, before, since = call('HGETALL', key), {}, json ~= '' and 1 or 0, 0, since_of(json)
    for i = 1, #beats, 2 do
      local left, said = left_us(beats[i + 1], now)
      if beats[i] == id and json == '' or beats[i] ~= id and not left then
        over[#over + 1] = beats[i]
      elseif beats[i] ~= id then
        alive = alive + 1
        local other = since_of(said)
        if other < since or other == since and beats[i] < id then before = before + 1 end
      end
    end
    -- checks end here
    for i = 1, #over, 1000 do call('HDEL', key, unpack(over, i, min(#over, i + 999))) end
    if json ~= '' then
      call('HSET', key, id, digits(now + COUNTS_US) .. ' ' .. json)
      call('PEXPIRE', key, COUNTS_US / 1000)
    end
    return { alive, before, rejecting.news(space) }
  end

  -- count: how many daemons are alive, or an error.
  function daemons.count(key, now)
    local beats, n = pcall_redis('HVALS', key), 0
    if base.is_error(beats) then return beats end
    for _, beat in ipairs(beats) do
      if left_us(beat, now) then n = n + 1 end
    end
    return n
  end

  -- drip__daemons: the daemons that are alive.
  -- keys   <prefix>:daemons
  -- args   now_us
  -- reply  { id, json, age_ms (since its last beat), ... }
  -- cost   O(daemons)
  function daemons.living(redis_keys, args)
    local key, now, list = redis_keys[1] or '', clock(args[1]), {}
    if not keys.space_before(key, 'daemons') then return refuse('BADARG', 'daemons takes <prefix>:daemons') end
    local beats = call('HGETALL', key)
    for i = 1, #beats, 2 do
      local left, json = left_us(beats[i + 1], now)
      if left then
        local n = #list
        list[n + 1], list[n + 2], list[n + 3] = beats[i], json, floor((COUNTS_US - left) / 1000)
      end
    end
    return list
  end
end
