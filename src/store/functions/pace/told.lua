-- needs: base
-- Told limits: the other side says how much more it lets through until its limit resets. This file keeps how much of
-- that is left, and decides when the next job may leave. Nothing here calls Redis.
--
-- The told limits of a node, `t`, by what they count and how much they allow: "job/100", "cost/9000", "job/0" where the
-- other side does not say how much. So its limits of a second, a minute and a day are kept apart. Such a limit, `l`:
--   unit     "job", or "cost": what jobs cost
--   left     so much more may leave until `till`: what was told, less what was out then and has left since
--   till     when it resets; in the past: nothing is known of the present window
--   length   how far ahead `till` may lie, in case the clock steps back
--   next     with `told = "spread"`: when the next job may leave
--   limit    what is left after a reset, as the other side says; 0: it does not say
--   period   the longest time until a reset that was told: how long a window lasts
--   at       when something was told last, or what was told has reset
--   is_told  1: the other side told this window; 0: it is reckoned from limit and period, because nothing is told of it
--            yet; 2: it was told, and is asked again
--   reset    when it last reset
--   refill   so much is taken to be left after a reset; 0: not known. See `learn`
--   first    when the first job after the last reset left; 0: none has, -1: it is answered (not with
--            "spread"), or not known
--   then_left, then_till  the same two of the window after this one, where that was told already: where resets are
--            rounded up to whole seconds, answers of the next window come before this one is over here. 0: not told
--   ends     when it resets, where that was told to be more than a day ahead: then `till` is a day ahead; 0: at `till`
--
-- After a reset nothing is told before the first job of the new window is answered. That may take seconds, in which a
-- rate that is far too high would send too much. So a window is reckoned then, where a limit is known: it was said, or
-- shown by answers that left more.
--
-- A reset that is more than a day ahead may be a mistake: seconds since 1970 in place of milliseconds are some weeks.
-- So nothing is stopped for longer than a day: then one job leaves, or what is left, and its answer says more (`ask`).

local told = {}
do
  local digits = base.digits

  local NUMBERS = { 'left', 'till', 'length', 'next', 'limit', 'period', 'at', 'is_told', 'reset', 'then_left',
    'then_till', 'refill', 'first', 'ends' }
  local NEXT_FROM = 0.5 -- a reset that is so much of a period later than this one is that of the next window
  local LITTLE = 0.5 -- less of the limit than this is little
  local LIMITS_MOST = 4 -- of a node: the one of which most is left is forgotten
  local KEPT_US = 60000000 -- a limit is known at least so long after something was told, or that has reset, or
  local KEPT_PERIODS = 3 -- so many periods, but
  local KEPT_MOST_US = 3600000000 -- no longer than this
  local SPARE = 1.03 -- a reckoned window is this much longer than the period: the other side counts by another clock
  local ASK_US = 86400000000 -- the other side is asked again after so long
  local LAST = 0.1 -- in this last part of a window its rest is let out no faster than its mean rate

  local function key_of(l) return l.unit .. '/' .. digits(l.limit) end

  -- encode: "<unit> <numbers>", a line for each limit.
  function told.encode(t)
    local lines = {}
    for _, l in pairs(t) do
      local list = { l.unit }
      for i, name in ipairs(NUMBERS) do list[i + 1] = digits(l[name]) end
      lines[#lines + 1] = table.concat(list, ' ')
    end
    table.sort(lines)
    return table.concat(lines, '\n')
  end

  function told.decode(text)
    local t = {}
    for unit, numbers in gmatch(text, '(%l+)([^\n]*)') do
      local l, i = { unit = unit }, 0
      for number in gmatch(numbers, '%-?%d+') do
        i = i + 1
        l[NUMBERS[i] or 'more'] = tonumber(number)
      end
      l.then_left, l.then_till = l.then_left or 0, l.then_till or 0
      l.refill, l.first, l.ends = l.refill or l.limit, l.first or 0, l.ends or 0
      if l.reset then t[key_of(l)] = l end
    end
    return next(t) and t or nil
  end

  -- over: when nothing of a limit is known any more.
  local function over(l)
    local heard_us = max(l.at, l.is_told == 1 and l.till or 0)
    return max(l.till, l.ends, l.then_till, heard_us + max(KEPT_US, min(KEPT_MOST_US, KEPT_PERIODS * l.period)))
  end

  -- expires_at: when nothing of it needs to be kept any more.
  function told.expires_at(t)
    local last = 0
    for _, l in pairs(t) do last = max(last, over(l)) end
    return last
  end

  -- knows: whether it is known what is left after a reset. Where all answers leave nothing, they are of refused calls.
  local function knows(l) return l.limit > 0 or l.refill > 1 end

  -- reckon: a window that begins at `from`, of which nothing is told. It is as long as the period, or shorter where
  -- only part of the limit came back, but no shorter than the one before, and at no higher rate. That of one job is as
  -- long as its share of the period: its answer may be lost.
  local function reckon(l, from)
    local before = l.till - l.reset
    if l.is_told == 1 then l.at = max(l.at, min(l.till, from)) else before = before / SPARE end
    local part = l.limit > 0 and l.refill / l.limit or 1
    local least = l.refill > 1 and min(before, l.period) or 0
    l.length = min(ASK_US, ceil(SPARE * max(least, part * l.period)))
    l.reset, l.left, l.till, l.is_told, l.first = min(l.till, from), l.refill, from + l.length, 0, 0
  end

  -- lasts: a window lasts until a time, but at first no longer than a day.
  local function lasts(l, ends, now)
    l.till = min(ends, now + ASK_US)
    l.ends, l.length = ends > l.till and ends or 0, l.till - now
  end

  -- ask: a day of a longer window is over. One job leaves at least, and the report with its answer counts.
  local function ask(l, now)
    lasts(l, l.ends, now)
    l.left, l.is_told, l.first = max(l.left, 1), 2, -1
  end

  -- begin_next: the window begins that was told before this one was over. The first report in it counts, whatever it
  -- says, as in one that is reckoned.
  local function begin_next(l, now)
    l.reset, l.left, l.is_told = l.till, l.then_left, 0
    lasts(l, l.then_till, now)
    l.next, l.then_left, l.then_till, l.first = min(l.next, l.till), 0, 0, -1
  end

  -- reconcile: forget or reckon anew what has reset, and bring back what lies further ahead than it may: the clock
  -- stepped back. Replies whether anything changed.
  function told.reconcile(t, now)
    local changed = false
    for key, l in pairs(t) do
      if l.till > now + l.length then l.till, changed = now + l.length, true end
      if l.ends > 0 and l.ends <= now then l.till, l.ends, changed = l.ends, 0, true end
      local after = max(l.till, l.ends, now)
      if l.then_till > after + l.period then l.then_till, changed = after + l.period, true end
      if l.at > now then l.at, changed = now, true end
      if l.next > l.till then l.next, changed = l.till, true end
      if over(l) <= now then
        t[key], changed = nil, true
      elseif l.till <= now and l.ends > 0 then
        ask(l, now)
        changed = true
      elseif l.till <= now and l.then_till > now then
        begin_next(l, now)
        changed = true
      elseif l.till <= now and knows(l) then
        reckon(l, now - l.till < l.period and l.till or now)
        changed = true
      end
    end
    return changed
  end

  -- limit_of: the limit that a report is about; it is made where nothing is known of it yet.
  local function limit_of(t, how)
    local l = { unit = how.unit, limit = how.limit or 0, period = 0, next = 0, till = 0, left = 0, length = 0, at = 0,
      is_told = 0, reset = 0, then_left = 0, then_till = 0, refill = how.limit or 0, first = -1, ends = 0 }
    local key, count, idlest = key_of(l), 0, nil
    if t[key] then return t[key] end
    for other, known in pairs(t) do
      count = count + 1
      local least = idlest and t[idlest]
      local holds_less = not least or known.left > least.left or known.left == least.left and known.till < least.till
      if holds_less then idlest = other end
    end
    if count >= LIMITS_MOST then t[idlest] = nil end -- the one that holds least back
    t[key] = l
    return l
  end

  -- learn: what the answer to a job shows of how much is left after a reset: what it leaves, and the job itself. The
  -- first job after one shows it best: less than the limit where the window slides, or tokens come one by one. Without
  -- "spread" all of it would leave at once. So where the next reset is near too, and little comes back at a time, it is
  -- taken to bring one job, whose answer shows how many more. is_old: that reset has come, and the job may have left
  -- before the last one: then less shows nothing.
  local function learn(l, p, how, now, is_old)
    local shown = l.limit > 0 and min(how.left + 1, l.limit) or how.left + 1
    if is_old and shown <= l.refill then return end
    if how.left_us == l.first and l.limit > 0 and l.unit == 'job' then
      if l.is_told == 0 and l.till > now then l.left = l.left + shown - l.refill end
      l.refill = shown
      if p.told == 'spread' then return end
      l.first = -1
      if shown < LITTLE * l.limit and how.reset_us < NEXT_FROM * l.period then l.refill = 1 end
    elseif how.left_us and not is_old and (l.first >= 0 or l.limit == 0 or l.unit == 'cost') then
      l.refill = max(l.refill, shown)
    end
  end

  -- report: the other side says that `left` more are let through until `reset_us` from now, for jobs (`unit`) or what
  -- they cost.
  --   how { unit, left, reset_us, limit: nil where it does not say, left_us: when the job left that was answered, nil:
  --         not known, is_time: the other side said at which time it resets, period_us: then, how long that was when
  --         the job left, out: how many are out and not answered }
  -- With "spread" and a known limit a job that leaves now is taken to be on its way as long as the answered one was:
  -- for it the reset comes `reset_us` after that one left, unless its time was said. A report whose reset has come by
  -- then is an old one. Only that nothing is left counts all the same, where nothing else is known, and its reset is
  -- later than the last one. Until a reset the lower of two reports counts; where nothing is left, the longer one: a
  -- day's limit that is used up holds until its reset. Replies whether this report counts.
  function told.report(t, p, how, now)
    local l, from_us = limit_of(t, how), how.is_time and now or min(how.left_us or now, now)
    l.at = now
    local is_ahead, reset = p.told == 'spread' and l.limit > 0, l.till <= now and l.till or l.reset
    local is_news = how.left == 0 and not is_ahead and (l.limit == 0 or l.till <= now)
    local is_old = from_us + how.reset_us <= (is_news and reset or now)
    learn(l, p, how, now, is_old)
    if is_old then
      l.period = max(l.period, how.period_us or how.reset_us)
      if l.till <= now and is_ahead then reckon(l, now) end
      return false
    end
    local left, ends = how.left - how.out, (is_ahead and how.left > 0 and from_us or now) + how.reset_us
    local period, last_ends = how.period_us or how.reset_us, max(l.till, l.ends)
    if l.is_told ~= 2 then period = max(l.period, period) end
    -- In a window that is reckoned, what has left since it began counts too: calls that were made and answered since
    -- the reporting one are neither out nor among those that the other side had counted.
    if l.till > now and l.is_told == 0 and how.left_us and how.left_us >= l.reset then
      left = min(left, l.left)
    end
    if l.till > now and l.is_told == 1 then
      local is_longer = left <= 0 and l.left <= 0 and ends > last_ends
      if left >= l.left and not is_longer then
        if ends < last_ends + NEXT_FROM * how.reset_us then return false end
        l.period, l.then_left, l.then_till = period, left, ends
        return false
      end
      -- Nothing is left, for the longer time.
      if l.left <= 0 then left, ends = min(left, l.left), max(ends, last_ends) end
    end
    lasts(l, ends, now)
    l.period, l.reset, l.left, l.is_told = period, reset, left, 1
    if l.then_till <= ends then l.then_left, l.then_till = 0, 0 end
    l.next = min(l.next, l.till)
    return true
  end

  -- resumes_at: when the next job may leave, which costs `cost`; in the past: now. A job that costs more than the whole
  -- limit leaves when all of it is left.
  function told.resumes_at(t, p, now, cost)
    local at = 0
    if p.told == 'off' then return at end
    for _, l in pairs(t) do
      if l.till > now then
        local units = l.unit == 'cost' and cost or 1
        if l.left < units and not (l.limit > 0 and l.left >= l.limit) then
          at = max(at, l.till)
        elseif p.told == 'spread' then
          at = max(at, l.next)
        end
      end
    end
    return at
  end

  -- charge: a job of this cost has left.
  function told.charge(t, now, cost)
    for _, l in pairs(t) do
      if l.till > now then
        local units, time = l.unit == 'cost' and cost or 1, max(l.till, l.ends) - now
        local step = l.left > 0 and time / l.left or 0
        if l.limit > 0 and time < LAST * l.period then step = max(step, l.period / l.limit) end
        l.next = min(l.till, ceil(now + step * units))
        l.left, l.then_left = l.left - units, l.then_left - units
        if l.first == 0 then l.first = now end
      end
    end
  end

  -- adjust: a job that left at `left_us` cost so many units more, or less. A limit that has reset since is left alone.
  -- The rest is spread anew.
  function told.adjust(t, now, left_us, units)
    for _, l in pairs(t) do
      if l.unit == 'cost' and l.till > now and left_us >= l.reset then
        l.left, l.then_left = l.left - units, l.then_left - max(0, units)
        if l.left > 0 then l.next = min(l.next, ceil(now + (max(l.till, l.ends) - now) / (l.left + 1))) end
      end
    end
  end

  -- applies: the limit of which least is left, of as much the one that lasts longest; nil where nothing is told.
  function told.applies(t, p, now)
    local least
    for _, l in pairs(p.told == 'off' and {} or t) do
      local is_less = l.till > now
        and (not least or l.left < least.left or l.left == least.left and l.till > least.till)
      if is_less then least = l end
    end
    return least
  end

  -- in_words: a text about the told limits, for people; nil where none applies.
  function told.in_words(t, p, now)
    local l = told.applies(t, p, now)
    if not l then return nil end
    local of = l.limit > 0 and ' of ' .. digits(l.limit) or ''
    return digits(max(0, l.left)) .. of .. (l.unit == 'cost' and ' units' or ' jobs') .. ' left'
      .. (l.is_told == 0 and ', reckoned' or '')
  end

  -- as_setting: the told limits as a timed setting, for people; nil where none applies.
  function told.as_setting(t, p, now)
    local l = told.applies(t, p, now)
    return l and { text = told.in_words(t, p, now), since = digits(l.at), till = digits(l.till), by = 'the other side' }
  end
end
