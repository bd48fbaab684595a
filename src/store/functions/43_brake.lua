-- Brakes: what keeps a node from going besides its pace: the windows of its quotas (33_quota), and its slow-down (33_slow).
--
-- <prefix>:slow keeps the slow-downs, <prefix>:windows what was used of quotas, and <prefix>:over says from when on something of a node
-- is worth nothing. Both texts open with the version of their format and "<pace>/<held>" (see below). The field `brakes` of the policy
-- key says whether anything is stored at all ('s' a slow-down, 'q' a window), so where nothing is nothing is read.
--
-- The state of the brakes of a node, `br`:
--   id, slow, windows    the node, and what is stored of it; each may be missing
--   pace, held           of a bucket that stands where it does because of a brake: its due without that, and when the brake ends

local brake = {}
do
  local digits = base.digits

  local VERSION = '1'
  local HEAD = '^(%d+) (%d+)/(%d+) ?(.*)$'
  local FORGET_MOST = 100 -- nodes in a call
  local PART = 4000       -- values that are written at once

  -- fresh: the brakes of a node of which nothing is stored.
  function brake.fresh(id) return { id = id } end

  local function body_of(ctx, br, text, key)
    local version, pace, held, body = match(text, HEAD)
    if version ~= VERSION then
      context.note(ctx, 'newer', key)
      br.is_newer = true -- it is left alone
      return nil
    end
    if pace ~= '0' then br.pace, br.held = pace + 0, held + 0 end
    return body
  end

  local function over_of(br)
    local over = huge
    if br.slow then over = slow.over(br.slow) end
    if br.windows then over = min(over, quota.over(br.windows)) end
    return over
  end

  -- change: something of it is to be written at the end of the call.
  local function change(ctx, br)
    if br.changed then return end
    ctx.braked = ctx.braked or {}
    br.changed, ctx.braked[#ctx.braked + 1] = true, br
  end
  brake.change = change

  local function decode(ctx, id, slow_text, windows_text)
    local br = { id = id }
    local body = slow_text and body_of(ctx, br, slow_text, ctx.k.slow)
    br.slow = body and slow.decode(body) or nil
    body = windows_text and body_of(ctx, br, windows_text, ctx.k.windows)
    br.windows = body and quota.decode(body) or nil
    br.had_slow, br.had_windows, br.over = slow_text and true, windows_text and true, over_of(br)
    if br.slow and slow.put_right(br.slow, ctx.now) then change(ctx, br) end
    return br
  end

  -- read: the brakes of some nodes, in their order; false where nothing is stored.
  -- reads   slow, windows      cost  1 call each, where there are any
  function brake.read(ctx, ids)
    local slows = ctx.has_slow and call('HMGET', ctx.k.slow, unpack(ids)) or {}
    local windows = ctx.has_windows and call('HMGET', ctx.k.windows, unpack(ids)) or {}
    local found = {}
    for i = 1, #ids do
      local slow_text, windows_text = slows[i], windows[i]
      found[i] = (slow_text or windows_text) and decode(ctx, ids[i], slow_text, windows_text) or false
    end
    return found
  end

  -- expect: these buckets are asked for next. ctx.slowed has those of which something is stored of a slow-down.
  function brake.expect(ctx, names)
    if not ctx.has_slow and not ctx.has_windows or #names == 0 then return end
    local known, missing = ctx.brakes, names
    if known then
      missing = {}
      for _, name in ipairs(names) do
        if known[name] == nil then missing[#missing + 1] = name end
      end
      if not missing[1] then return end
    else
      known = {}
      ctx.brakes = known
    end
    local found = brake.read(ctx, missing)
    for i = 1, #missing do
      local br = found[i]
      known[missing[i]] = br
      if br and br.slow then
        ctx.slowed = ctx.slowed or {}
        ctx.slowed[missing[i]] = true
      end
    end
  end

  -- of: the brakes of a bucket, or nil where it has none.
  function brake.of(ctx, name, p)
    if not ctx.has_slow and not ctx.has_windows and not ctx.brakes and not p.quotas then return nil end
    ctx.brakes = ctx.brakes or {}
    local br = ctx.brakes[name]
    if br == nil then
      br = brake.read(ctx, { name })[1]
      ctx.brakes[name] = br
    end
    if not br and p.quotas then
      br = brake.fresh(name)
      ctx.brakes[name] = br
    end
    return br or nil
  end

  -- is_slowed: whether anything is stored of a slow-down of a bucket: then it goes no plain way.
  function brake.is_slowed(ctx, name, p)
    local br = ctx.has_slow and brake.of(ctx, name, p)
    return br and br.slow ~= nil
  end

  -- give: the brakes of a bucket that is slowed down: they are made where there are none.
  function brake.give(ctx, name, p)
    local br = brake.of(ctx, name, p)
    if not br then
      br = brake.fresh(name)
      ctx.brakes = ctx.brakes or {}
      ctx.brakes[name] = br
    end
    return br
  end

  -- till: when the last of them ends, or ended; 0: there is none.
  function brake.till(br, p, now)
    local till = br.slow and br.slow.till or 0
    if br.windows and p.quotas then till = max(till, quota.till(br.windows, p.quotas, now, 1)) end
    return till
  end

  -- hold: when a bucket may go whose pace lets it go at `pace`, nil: at once. The end of a brake is no lateness, and neither is the end
  -- that somebody made.
  function brake.hold(ctx, br, p, pace)
    local till, now = brake.till(br, p, ctx.now), ctx.now
    if till > max(pace or now, now) then
      pace = pace or now
      if br.pace ~= pace or br.held ~= till then
        br.pace, br.held = pace, till
        change(ctx, br)
      end
      return till
    end
    if not br.pace then return pace end
    local went_on = min(br.held, now)
    br.pace, br.held = nil, nil
    change(ctx, br)
    return pace and max(pace, went_on)
  end

  -- hold_budget: a budget whose brake holds it goes on at the end of that, so its `went_on` may be still to come. One that it holds no
  -- more goes on now. Replies whether that is to be written.
  function brake.hold_budget(ctx, b, p)
    local br, till = b.brake, 0
    if not br and p.quotas then
      br = brake.fresh(b.id)
      b.brake = br
    end
    if br then till = brake.till(br, p, ctx.now) end
    if b.went_on > ctx.now and till < b.went_on then
      b.went_on = max(till, ctx.now)
      return true
    end
    if till > b.went_on then b.went_on = till end
    return false
  end

  -- factor: what is left of the rate of a node.
  function brake.factor(br, p)
    return br.slow and slow.factor(br.slow, p) or 1
  end

  function brake.interval_us(br, p)
    return br.slow and p.count and slow.interval_us(p, slow.factor(br.slow, p)) or p.interval_us
  end

  -- after: one interval after a due.
  function brake.after(br, p, due)
    local factor = brake.factor(br, p)
    return factor < 1 and due + slow.interval_us(p, factor) or rate.after(p, due)
  end

  -- re_anchor: a due that followed the rate of `old` follows that of `p`: last job + the new interval.
  function brake.re_anchor(br, old, p, due)
    local factor = br and brake.factor(br, p) or 1
    if factor < 1 then return due - slow.interval_us(old, factor) + slow.interval_us(p, factor) end
    return rate.after(p, due - old.step)
  end

  -- charge: a job of the node has left. `more` says whether another one waits now; nil: nobody knows, so none is taken to have waited for
  -- longer than an interval.
  -- Replies when the last of its windows ends that are used up by now; 0: none is.
  function brake.charge(ctx, br, p, more)
    local d, till = br.slow, 0
    if p.quotas then
      br.windows = br.windows or {}
      till = quota.charge(br.windows, p.quotas, ctx.now, 1)
      if not br.changed then change(ctx, br) end
    end
    if not d or d.factor >= 1 then return till end
    local waited = d.seen > 0 and ctx.now - d.seen or 0
    if more == nil then waited = min(waited, slow.interval_us(p, d.factor)) end
    slow.left(d, ctx.now, waited)
    d.seen = more ~= false and ctx.now or 0
    change(ctx, br)
    return till
  end

  -- left: the same of a bucket, in return for `due`. Replies when its next job may leave.
  function brake.left(ctx, br, p, due, more)
    brake.charge(ctx, br, p, more)
    return brake.hold(ctx, br, p, brake.after(br, p, due))
  end

  local function head_of(br)
    return VERSION .. ' ' .. (br.pace and digits(br.pace) .. '/' .. digits(br.held) or '0/0')
  end

  -- write: what is added to a key, and what leaves it, in parts, for `unpack` takes no more at once.
  local function write(key, add_by, add, remove_by, gone)
    for i = 1, #gone, PART do call(remove_by, key, unpack(gone, i, min(i + PART - 1, #gone))) end
    for i = 1, #add, PART do call(add_by, key, unpack(add, i, min(i + PART - 1, #add))) end
  end

  -- flag: say what is stored.
  local function flag(ctx, has_slow, has_windows)
    if has_slow == ctx.has_slow and has_windows == ctx.has_windows then return end
    ctx.has_slow, ctx.has_windows = has_slow, has_windows
    local text = (has_slow and 's' or '') .. (has_windows and 'q' or '')
    if text == '' then call('HDEL', ctx.k.policy, 'brakes') else call('HSET', ctx.k.policy, 'brakes', text) end
  end

  -- flush: write what changed.
  -- writes  slow, windows, over, the policy key      cost  at most 6 calls
  function brake.flush(ctx)
    local slows, slows_gone, windows, windows_gone, over, over_gone = {}, {}, {}, {}, {}, {}
    for _, br in ipairs(ctx.braked) do
      br.changed = false
      if not br.is_newer then
        if br.slow and slow.over(br.slow) <= ctx.now then br.slow = nil end
        local text = br.windows and quota.encode(br.windows, ctx.now) or ''
        if text == '' then br.windows = nil end
        if br.slow then
          slows[#slows + 1], slows[#slows + 2] = br.id, head_of(br) .. ' ' .. slow.encode(br.slow)
        elseif br.had_slow then
          slows_gone[#slows_gone + 1] = br.id
        end
        if br.windows then
          windows[#windows + 1], windows[#windows + 2] = br.id, head_of(br) .. ' ' .. text
        elseif br.had_windows then
          windows_gone[#windows_gone + 1] = br.id
        end
        br.had_slow, br.had_windows = br.slow ~= nil, br.windows ~= nil
        local at = over_of(br)
        if at == huge then
          over_gone[#over_gone + 1] = br.id
        elseif at ~= br.over then
          over[#over + 1], over[#over + 2] = digits(at), br.id
        end
        br.over = at
        if at < ctx.memory.over_us then ctx.memory.over_us = at end
      end
    end
    ctx.braked = false
    write(ctx.k.slow, 'HSET', slows, 'HDEL', slows_gone)
    write(ctx.k.windows, 'HSET', windows, 'HDEL', windows_gone)
    write(ctx.k.over, 'ZADD', over, 'ZREM', over_gone)
    flag(ctx, ctx.has_slow or slows[1] ~= nil, ctx.has_windows or windows[1] ~= nil)
  end

  -- forget: drop what is worth nothing any more. Replies whether more could be dropped.
  -- reads, writes  slow, windows, over, the policy key      cost  O(FORGET_MOST), where something is over; else none
  function brake.forget(ctx)
    local m = ctx.memory
    if not ctx.has_slow and not ctx.has_windows or ctx.now < m.over_us then return false end
    local over = ctx.k.over
    local ids = call('ZRANGE', over, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', FORGET_MOST)
    if ids[1] then
      for i, br in ipairs(brake.read(ctx, ids)) do
        if br and not br.is_newer then
          br.over = nil -- whatever is written there
          change(ctx, br)
        else
          call('ZREM', over, ids[i])
        end
      end
      if ctx.braked then brake.flush(ctx) end
    end
    local first = call('ZRANGE', over, '0', '0', 'WITHSCORES')
    m.over_us = first[2] and first[2] + 0 or huge
    flag(ctx, call('EXISTS', ctx.k.slow) == 1, call('EXISTS', ctx.k.windows) == 1)
    return #ids == FORGET_MOST
  end

  -- page: a page of the slow-downs in force: { id, d, p } each, and where the next page begins.
  function brake.page(ctx, cursor)
    local page, list, ids = call('HSCAN', ctx.k.slow, cursor, 'COUNT', ctx.limits.batch), {}, {}
    for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
    for i, br in ipairs(ids[1] and brake.read(ctx, ids) or {}) do
      local p = record.policy_of(ctx.rec, ids[i])
      if p and br and br.slow and slow.matters(br.slow, p, ctx.now) then list[#list + 1] = { id = ids[i], d = br.slow, p = p } end
    end
    return list, page[1]
  end
end
