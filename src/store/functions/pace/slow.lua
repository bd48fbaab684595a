-- needs: base
-- Slow-downs: the other side asked for a pause. How long one lasts, what belongs to it, and what is left of the rate. Nothing here
-- calls Redis.
--
-- The slow-down of a node, `d`:
--   begun, till      when the last one began, and when the node goes on; both may be over
--   length           the longest that it may still last, for a clock that steps back
--   incidents, last  how many in a row, and when the last of them was
--   max_us           so long after its end they are forgotten
--   factor           what is left of the rate, 1 to 1/64: a node with `adaptive` is slowed for longer than a pause lasts
--   busy_us, seen    for how long jobs have waited since the factor last changed, and up to when that was reckoned; seen 0: none waited
--   by, reason       who said so, and why

local slow = {}
do
  local digits = base.digits

  local DAY_US = 86400000000
  local LEAST, LESS = 1 / 64, 0.9               -- what an incident leaves of the rate
  local MORE, MORE_EVERY_US = 0.01, 10000000    -- and what comes back for each such time without one
  local JITTER = 0.1

  local NUMBERS = { 'begun', 'till', 'length', 'incidents', 'last', 'max_us', 'busy_us', 'seen' }

  function slow.fresh()
    return { begun = 0, till = 0, length = 0, incidents = 0, last = 0, max_us = 0, factor = 1, busy_us = 0, seen = 0, by = '', reason = '' }
  end

  -- encode: "<numbers> <factor>", then who and why, a line each.
  function slow.encode(d)
    local list = {}
    for i, name in ipairs(NUMBERS) do list[i] = digits(d[name]) end
    list[#list + 1] = format('%.17g', d.factor)
    return table.concat(list, ' ') .. '\n' .. gsub(d.by, '%c', ' ') .. '\n' .. d.reason
  end

  function slow.decode(text)
    local numbers, by, reason = match(text, '^([^\n]*)\n([^\n]*)\n(.*)$')
    local d, i = { by = by, reason = reason }, 0
    for number in gmatch(numbers or '', '%S+') do
      i = i + 1
      d[NUMBERS[i] or 'factor'] = tonumber(number)
    end
    return d.factor and d or nil
  end

  -- put_right: no moment of it lies further ahead than it may: beyond that, the clock stepped back. What is over is forgotten. Replies
  -- whether anything changed.
  function slow.put_right(d, now)
    local changed = false
    local function is(name, value)
      if d[name] ~= value then d[name], changed = value, true end
    end
    if d.till > now + d.length then is('till', now + d.length) end
    if d.begun > now then is('begun', now) end
    if d.last > now then is('last', now) end
    if d.seen > now then is('seen', 0) end
    if now >= d.till + d.max_us then is('incidents', 0) end
    if d.factor < 1 and now >= d.last + DAY_US then is('factor', 1) end
    return changed
  end

  -- over: from when on nothing of it is worth keeping.
  function slow.over(d)
    return max(d.till + d.max_us, d.factor < 1 and d.last + DAY_US or 0)
  end

  -- jitter: a part of a length, up to a tenth, from the time and the name.
  local function jitter(length, now, id)
    return floor(length * JITTER * tonumber(sub(redis.sha1hex(digits(now) .. id), 1, 8), 16) / 2 ^ 32)
  end

  -- pause: the node goes on no sooner than so long from now. It is only ever extended.
  local function pause(d, how, now, length)
    if now >= d.till then d.begun = now end
    if now + length > d.till then d.till, d.length = now + length, length end
    d.max_us = how.max_us
  end

  -- ask: somebody asks for a pause, without a job.
  function slow.ask(d, how, now, length)
    pause(d, how, now, min(length, how.cap_us))
  end

  -- incident: a job that left at `left_us` was turned away; `length` is what the other side asks for, nil: nothing. A job that left
  -- before the last slow-down began, present or over, belongs to that. Replies whether this was a new incident.
  function slow.incident(d, how, now, id, left_us, length, has_rate)
    if d.begun > 0 and left_us <= d.begun then
      if length then pause(d, how, now, min(length, how.cap_us)) end
      return false
    end
    d.incidents, d.last = d.incidents + 1, now
    if how.adaptive and has_rate then d.factor, d.busy_us, d.seen = max(LEAST, d.factor * LESS), 0, 0 end
    if length then
      length = min(length, how.cap_us)
    else
      length = how.initial_us
      if not how.adaptive then length = min(how.max_us, length * 2 ^ min(d.incidents - 1, 40)) end
      length = length + jitter(length, now, id)
    end
    pause(d, how, now, length)
    d.begun = now
    return true
  end

  -- clear: it is over, and so is what it left of the rate.
  function slow.clear(d, now)
    d.till, d.length = min(d.till, now), 0
    d.incidents, d.factor, d.busy_us, d.seen = 0, 1, 0, 0
  end

  -- done: a job that left at `left_us` was acknowledged. Replies whether that ends what came before.
  function slow.done(d, left_us)
    if d.incidents == 0 or left_us < d.till then return false end
    d.incidents = 0
    return true
  end

  -- left: a job has left; `waited` is for how long, at most, one that could have left before had to wait. Replies whether anything changed.
  function slow.left(d, now, waited)
    if d.factor >= 1 then return false end
    d.busy_us = d.busy_us + max(0, waited)
    local steps = floor(d.busy_us / MORE_EVERY_US)
    if steps > 0 then d.factor, d.busy_us = min(1, d.factor + steps * MORE), d.busy_us - steps * MORE_EVERY_US end
    return true
  end

  -- matters: whether it slows anything down now.
  function slow.matters(d, p, now)
    return d.till > now or slow.factor(d, p) < 1
  end

  -- ends: when it slows nothing down any more, as things stand; the rate may be back sooner.
  function slow.ends(d, p)
    return slow.factor(d, p) < 1 and max(d.till, d.last + DAY_US) or d.till
  end

  -- factor: what applies of it now.
  function slow.factor(d, p)
    return p.slow.adaptive and d.factor or 1
  end

  -- interval_us: the longest interval at what is left of the rate.
  function slow.interval_us(p, factor)
    return factor < 1 and p.count and ceil(p.period_us / p.count / factor) or p.interval_us
  end

  -- in_words: how things stand with a slow-down, for people.
  function slow.in_words(d, p)
    local n, factor = d.incidents, slow.factor(d, p)
    local text = n == 0 and 'asked for' or n == 1 and '1 incident' or digits(n) .. ' incidents'
    return factor < 1 and text .. ', at ' .. digits(floor(factor * 100 + 0.5)) .. ' % of its rate' or text
  end
end
