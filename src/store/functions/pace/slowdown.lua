-- needs: base
-- Slow-downs: the receiver of a bucket's or budget's jobs asked for a pause. This file decides how long it lasts, which
-- failures belong to it, and what is left of the rate. Nothing here calls Redis.
--
-- The slow-down of a node, `d`:
--   begun, till      when the last one began, and when the node resumes; both may have passed
--   length           the longest that it may still last, in case the clock steps back
--   incidents, last  the number of incidents in a row, and when the last one was
--   max_us           so long after its end the incidents are forgotten
--   factor           what is left of the rate, 1 to 1/64: a node with `adaptive` is slowed down for longer than the
--                    pause lasts
--   busy_us, seen    how long jobs have waited since the factor last changed, and up to when that was counted; seen 0:
--   none waits
--   by, reason       who asked for it, and why

local slowdown = {}
do
  local digits = base.digits

  local DAY_US = 86400000000
  local LEAST, LESS = 1 / 64, 0.9 -- what an incident leaves of the rate
  local MORE, MORE_EVERY_US = 0.01, 10000000 -- what comes back for each such time without an incident
  local JITTER = 0.1

  local NUMBERS = { 'begun', 'till', 'length', 'incidents', 'last', 'max_us', 'busy_us', 'seen' }

  function slowdown.new()
    local d = { factor = 1, by = '', reason = '' }
    for _, name in ipairs(NUMBERS) do d[name] = 0 end
    return d
  end

  -- encode: "<numbers> <factor>", then who and why, a line each.
  function slowdown.encode(d)
    local list = {}
    for i, name in ipairs(NUMBERS) do list[i] = digits(d[name]) end
    list[#list + 1] = format('%.17g', d.factor)
    return table.concat(list, ' ') .. '\n' .. gsub(d.by, '%c', ' ') .. '\n' .. d.reason
  end

  function slowdown.decode(text)
    local numbers, by, reason = match(text, '^([^\n]*)\n([^\n]*)\n(.*)$')
    local d, i = { by = by, reason = reason }, 0
    for number in gmatch(numbers or '', '%S+') do
      i = i + 1
      d[NUMBERS[i] or 'factor'] = tonumber(number)
    end
    return d.factor and d or nil
  end

  -- reconcile: no time of it lies further ahead than it may: beyond that, the clock stepped back. What has expired is
  -- reset. Replies whether anything changed.
  function slowdown.reconcile(d, now)
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
    if now >= slowdown.expires_at(d) then is('begun', 0) end -- no failure belongs to it any more
    return changed
  end

  -- expires_at: when nothing of it needs to be kept any more.
  function slowdown.expires_at(d)
    return max(d.till + d.max_us, d.factor < 1 and d.last + DAY_US or 0)
  end

  -- jitter: up to a tenth of a length, derived from the time and the id.
  local function jitter(length, now, id)
    return floor(length * JITTER * tonumber(sub(redis.sha1hex(digits(now) .. id), 1, 8), 16) / 2 ^ 32)
  end

  -- pause: the node resumes no sooner than `length` from now. A pause is only ever extended.
  local function pause(d, how, now, length)
    if now >= d.till then d.begun = now end
    if now + length > d.till then d.till, d.length = now + length, length end
    d.max_us = how.max_us
  end

  -- request: somebody asks for a pause, without a failed job.
  function slowdown.request(d, how, now, length)
    pause(d, how, now, min(length, how.cap_us))
  end

  -- incident: the receiver sent back a job that left at `left_us`; `length` is the pause that it asks for, nil: none. A
  -- job that left before the last slow-down began (whether that is over or not) belongs to that one. Replies whether
  -- this was a new incident.
  function slowdown.incident(d, how, now, id, left_us, length, has_rate)
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

  -- clear: end the slow-down, and restore the rate.
  function slowdown.clear(d, now)
    d.till, d.length = min(d.till, now), 0
    d.incidents, d.factor, d.busy_us, d.seen = 0, 1, 0, 0
  end

  -- acknowledged: a job that left at `left_us` was acknowledged. Replies whether that ends the incidents in a row.
  function slowdown.acknowledged(d, left_us)
    if d.incidents == 0 or left_us < d.till then return false end
    d.incidents = 0
    return true
  end

  -- dispatched: a job has left at less than the whole rate; `waited` is how long, at most, a job that could have left
  -- had to wait.
  function slowdown.dispatched(d, waited)
    d.busy_us = d.busy_us + max(0, waited)
    local steps = floor(d.busy_us / MORE_EVERY_US)
    if steps > 0 then d.factor, d.busy_us = min(1, d.factor + steps * MORE), d.busy_us - steps * MORE_EVERY_US end
  end

  -- applies: whether it slows anything down now.
  function slowdown.applies(d, p, now)
    return d.till > now or slowdown.factor(d, p) < 1
  end

  -- ends: when it will slow nothing down any more, as things are now; the rate may be back sooner.
  function slowdown.ends(d, p)
    return slowdown.factor(d, p) < 1 and max(d.till, d.last + DAY_US) or d.till
  end

  -- factor: what is left of the rate under this policy.
  function slowdown.factor(d, p)
    return p.slow.adaptive and d.factor or 1
  end

  -- interval_us: the longest interval at what is left of the rate.
  function slowdown.interval_us(p, factor)
    return factor < 1 and p.count and ceil(p.period_us / p.count / factor) or p.interval_us
  end

  -- as_setting: a slow-down in force as a timed setting, for people.
  function slowdown.as_setting(d, p)
    return {
      text = slowdown.in_words(d, p), since = digits(d.begun), till = digits(slowdown.ends(d, p)), by = d.by,
      reason = d.reason ~= '' and d.reason or nil,
    }
  end

  -- in_words: a text about a slow-down, for people.
  function slowdown.in_words(d, p)
    local n, factor = d.incidents, slowdown.factor(d, p)
    local text = n == 0 and 'asked for' or n == 1 and '1 incident' or digits(n) .. ' incidents'
    return factor < 1 and text .. ', at ' .. digits(floor(factor * 100 + 0.5)) .. ' % of its rate' or text
  end
end
