-- needs: base
-- Quotas: at most so many units in each calendar window. Nothing here calls Redis.
--
-- The windows of a quota { count, period_us, offset_us } are aligned to multiples of its period since 1970, in UTC or
-- in a time zone with that offset. The use of a node's windows is a table: <period_us>@<offset_us> -> { ends, used },
-- in units as charged. The key has no count, so where the count of a quota changes, what was used still counts.
--
-- A window counts until it ends, also where the clock steps back: jobs after the step are counted in it too. Where it
-- ends more than a period ahead, the step was a large one, and the window is forgotten.

local quota = {}
do
  local digits = base.digits

  -- name_of: the key of the windows of a quota.
  local function name_of(q)
    q.name = q.name or format('%.0f@%.0f', q.period_us, q.offset_us)
    return q.name
  end

  -- end_of: when the window of a moment ends.
  local function end_of(q, now)
    return now + q.period_us - fmod(now + q.offset_us, q.period_us)
  end

  local function counts(window, q, now)
    return window ~= nil and now < window.ends and window.ends <= now + q.period_us
  end

  -- till: when the last of the windows ends that have no room for so many units; 0: all have room. A job larger than
  -- the whole quota leaves alone in a window.
  function quota.till(windows, quotas, now, units)
    local till = 0
    for _, q in ipairs(quotas) do
      local window = windows[name_of(q)]
      if counts(window, q, now) and window.used > 0 and window.used + units > q.count then
        till = max(till, window.ends)
      end
    end
    return till
  end

  -- charge: so many units have left. Replies when the last of the used-up windows ends; 0: none is used up.
  function quota.charge(windows, quotas, now, units)
    local till = 0
    for i = 1, #quotas do
      local q = quotas[i]
      local name = q.name or name_of(q)
      local window = windows[name]
      if counts(window, q, now) then
        window.used = window.used + units
      else
        window = { ends = end_of(q, now), used = units }
        windows[name] = window
      end
      if window.used >= q.count and window.ends > till then till = window.ends end
    end
    return till
  end

  -- adjust: change the use of the windows by `units`, for jobs that left at `left_us`, where the window of that moment
  -- has not ended.
  function quota.adjust(windows, quotas, left_us, units)
    for _, q in ipairs(quotas) do
      local window = windows[name_of(q)]
      if window and window.ends - q.period_us <= left_us then window.used = max(0, window.used + units) end
    end
  end

  -- used: for each quota { count, period_us, offset_us, used, us until its window ends }, for people.
  function quota.used(windows, quotas, now)
    local list = {}
    for i, q in ipairs(quotas) do
      local window = windows and windows[name_of(q)]
      local is_open = counts(window, q, now)
      list[i] = { count = q.count, period_us = q.period_us, offset_us = q.offset_us,
        used = is_open and window.used or 0,
        ends_us = (is_open and window.ends or end_of(q, now)) - now }
    end
    return list
  end

  -- expires_at: when the last of some windows ends, and none needs to be kept; 0: there is none.
  function quota.expires_at(windows)
    local over = 0
    for _, window in pairs(windows) do over = max(over, window.ends) end
    return over
  end

  -- encode, decode: "<period>@<offset>:<ends>:<used> ...", without windows that have ended.
  function quota.encode(windows, now)
    local list = {}
    for name, window in pairs(windows) do
      if now < window.ends then list[#list + 1] = name .. ':' .. digits(window.ends) .. ':' .. digits(window.used) end
    end
    return table.concat(list, ' ')
  end

  function quota.decode(text)
    local windows = {}
    for name, ends, used in gmatch(text, '(%d+@%-?%d+):(%d+):(%d+)') do
      windows[name] = { ends = ends + 0, used = used + 0 }
    end
    return windows
  end
end
