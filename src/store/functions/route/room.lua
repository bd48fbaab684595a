-- needs: base, base.keys, base.names, context, policy.forward, policy.record, route, route.list_marks, route.position
-- Rooms: how many more jobs a route takes now. The undelivered jobs of a route are kept few, so that workers reach them
-- soon. Other jobs wait in their buckets, where their rate, share, order and pause still apply. This is the cure for
-- bufferbloat: the age is bounded as in CoDel (Nichols and Jacobson 2012), the number as in the byte queue limits of
-- Linux (Herbert 2011).
--
-- A job is *undelivered* while no worker has read it; in a list, while it is there. The *age* of a route is how long
-- ago its oldest undelivered job left its bucket. No job leaves a bucket for a route
--   R1  while its age is over its `ready_window`
--   R2  while its *limit* of jobs are undelivered. The limit starts at 8. While buckets are held (state) the route
--       is looked at every 20 ms. Where a look finds it empty, though it was filled, the limit doubles, and the next
--       look follows at once. Where the age is over the window the limit falls to limit * window / age, once a
--       window. Once a window it also falls by the number of jobs that were there at every look, all but a quarter
--       of the limit: more jobs than workers need would give a bucket of a high rate more turns than one of a low
--       rate. Where no bucket was held for a second it starts anew, at 8, or at a quarter more than workers took
--       between two looks in the last minute
--   and while limits.max_ready are undelivered. With the window "off" only this applies.
--
-- The fields of a room, `r`, which is remembered between calls:
--   stream, forward        its key; where it forwards, its list (policy/forward), or nil
--   sent, counted          jobs that entered since this memory began, and how many of those are in the figures
--   (context)
--   left                   how many more may enter, as far as is known
--   extra                  how many more than that, where a budget that becomes due goes at once: up to twice the limit
--   base                   the length of its stream at the last look, less `sent`: where it is longer, others have
--                          written to it
--   since_us               no undelivered job left its bucket before then: its age is at most now - since_us
--   looked, looked_us, era  in which call it was looked at closely, when it was looked at, and the era of the memory
--   then
--   limit, cut_us, held_us   of R2: the limit, when it fell, when a bucket was last held
--   is_filled              of R2: whether the last turns took all its room: where they only dropped jobs, or
--   budgets did not admit them, an empty route says nothing of its workers
--   least, least_us        of R2: the fewest undelivered jobs that a look for held buckets has found since then
--   seen, seen_us          jobs that were taken by the last look, and when that number changed
--   burst, burst_us        the most that were taken between two looks in a minute, and when
--   is_old                 whether its age was over the window at the last look
--   delivered, wakes       of a stream: the last delivered entry that was seen, and, since that went back, how many
--   jobs had entered: one more may enter, because only that wakes workers that wait in a read
--   oldest_us, oldest_after  of a stream: when its oldest undelivered job left, and the last delivered entry before
--   that
--   gone, marks, job       of a list: how many of the sent jobs have certainly been taken, the others by when they were
--   sent (route/list_marks), and the job that was sent last
--   is_shared              of a list: others push into it too, as its length shows, and it was not empty since
--   refilled, refilled_us  of such a list: how many jobs were sent when it last got room for as many as the limit, and
--   when: as many may enter in each 20 ms whatever lies there
--   done, level            of a list: how many jobs were sent up to the last mark that was taken, and after it, while
--   one is there that should have been taken
--   turned_us              in a call that looked for what stands in its line, or added to it: when that was
--   tags, tag_count, time, places, line_call   of its line (state/line)
--   taken_most             the highest number of taken jobs that was replied (view/routes)
--   samples                how many jobs its workers had taken when, for their pace (`taken_by`)
-- A room is believed while its numbers prove that no bound is exceeded, for 100 ms at most, and never from before
-- another server may have written (`era`, context/memory). Otherwise the route is looked at.

local room = {}
do
  local is_error, integer, note = base.is_error, base.integer, context.note

  local START = 8 -- the limit of a route of which nothing is known
  local ANEW_US = 1000000 -- after so long without a held bucket the limit starts anew
  local BURST_US = 60000000 -- how long it is remembered how many jobs workers took at once
  local MORE = 1.25 -- of what workers took at once: it varies
  local BELIEVED_US = 100000 -- after so long a route is looked at again
  local REFILL_US = 20000 -- how often a list into which others push too gets room: what is gone is known late
  local SILENT_US = 1000000 -- workers that take nothing for so long are looked at less often
  local SAMPLE_US = 1000000 -- how often the number of taken jobs is noted
  local PACE_US = 10000000 -- the pace of workers is measured over so long

  local function new(stream)
    return {
      stream = stream, forward = nil, sent = 0, counted = 0, left = 0, base = 0, since_us = -huge, looked_us = -huge,
      limit = START, cut_us = -huge, held_us = -huge, is_filled = true, least = huge, least_us = -huge,
      burst = 0, burst_us = -huge, is_old = false, seen = nil, seen_us = -huge,
      turned_us = -huge, extra = 0, delivered = nil, wakes = nil, oldest_us = nil, oldest_after = nil,
      gone = 0, done = 0, level = nil, marks = nil, job = nil, is_shared = false, refilled = 0,
      refilled_us = -huge,
      tags = nil, tag_count = 0, time = 0, line_call = 0,
      taken_most = 0, samples = {}, call = 0, looked = 0, to = nil, era = nil,
    }
  end

  -- of_memory: the remembered room of a route; made where there is none. `f` is its entry, where it forwards.
  local function of_memory(ctx, name, f)
    local rooms = ctx.memory.rooms
    local r, to = rooms[name], f and f.to
    if not r or r.to ~= to then -- its jobs go elsewhere now
      r = new(keys.ready(ctx.space, name))
      rooms[name] = r
    end
    r.entry, r.to = f, to
    return r
  end

  -- known: what is remembered of the room of a route.
  function room.known(ctx, name) return of_memory(ctx, name, forward.of(ctx.rec, name)) end

  -- window_of: the window of a route in us; nil: it is off.
  function room.window_of(ctx, name)
    local rec = ctx.rec.base or ctx.rec
    local us = rec.ready_windows and rec.ready_windows[name] or ctx.limits.ready_window_us
    return us > 0 and us or nil
  end

  -- ---- the age ----

  -- left_at: when the job of an entry left its bucket; for an entry that somebody else added, when that was.
  local function left_at(ctx, entry)
    local fields = entry[2]
    for i = 1, #fields, 2 do
      if fields[i] == 'job' then ctx.bytes = ctx.bytes + #fields[i + 1] end
      local at = fields[i] == 'at_us' and integer(fields[i + 1])
      if at then return at end
    end
    return match(entry[1], '^%d+') * 1000
  end

  -- age_of_stream: the age of a stream, given its oldest undelivered entry.
  function room.age_of_stream(ctx, name, oldest, group)
    local r = ctx.memory.rooms[name]
    local is_known = r and r.oldest_after == (group and group['last-delivered-id'] or '') and r.oldest_us
    return max(0, ctx.now - (is_known or left_at(ctx, oldest)))
  end

  -- find_oldest: find when the oldest undelivered job of a stream left. Replies whether there is one. The whole entry
  -- must be read, so it is read once.
  local function find_oldest(ctx, r, group)
    local after = group and group['last-delivered-id'] or ''
    if r.oldest_after ~= after then
      local entry = route.oldest(r.stream, group)
      if not entry then return false end
      r.oldest_us, r.oldest_after = left_at(ctx, entry), after
    end
    r.oldest_us = min(r.oldest_us, ctx.now) -- a job from after now counts as one from now
    r.since_us = r.oldest_us
    return true
  end

  -- age_of_list: its age, how many of the jobs in the list this server sent, and how many it has not seen taken (nil:
  -- not known); `length` is nil where it cannot be read.
  function room.age_of_list(ctx, name, list, length)
    local r = ctx.memory.rooms[name]
    if not r or not r.marks or r.forward.to ~= list then return 0, 0, nil end
    local taken, gone = 0, r.gone
    if length then taken, gone = list_marks.taken_of(ctx, r, length, room.window_of(ctx, name), true) end
    local first = length and r.marks[taken + 1]
    return first and max(0, ctx.now - first.at) or 0, r.sent - max(gone, 0), r.sent - gone
  end

  -- ---- looking ----

  -- taken_by: note how many jobs of a route were taken by now, since this memory began.
  local function taken_by(ctx, r, undelivered)
    local samples, now = r.samples, ctx.now
    local last = samples[#samples]
    if last and now >= last.at and now - last.at < SAMPLE_US then return end
    if last and now < last.at then samples = {} end -- the clock stepped back
    while samples[2] and samples[2].at <= now - PACE_US do table.remove(samples, 1) end
    samples[#samples + 1] = { at = now, taken = r.sent - undelivered }
    r.samples = samples
  end

  -- pace_of: how many jobs workers took in how long, over the last ten seconds; nil where that is not known. Without
  -- `undelivered`, the number of undelivered jobs now, the reply is as of the last sample.
  function room.pace_of(ctx, name, undelivered)
    local r = ctx.memory.rooms[name]
    local samples = r and r.samples or {}
    local first, last =
      samples[1], undelivered and { at = ctx.now, taken = r and r.sent - undelivered } or samples[#samples]
    for i = 2, #samples do
      if samples[i].at <= last.at - PACE_US then first = samples[i] end
    end
    if not first or last.at - first.at < SAMPLE_US then return nil end
    local taken = max(0, last.taken - first.taken)
    if taken == 0 and r.is_shared then return nil end -- they may have taken jobs of others
    return taken, last.at - first.at
  end

  -- anew: the limit of a route for which nothing was held for a second. Workers that take many jobs at once, now and
  -- then, find as many the next time, and lose no pace.
  local function anew(ctx, r)
    local most = MORE * r.burst
    if most <= START or ctx.now - r.burst_us > BURST_US or ctx.now < r.burst_us then return START end
    return ceil(most)
  end

  -- limit_of: the limit of a route now.
  function room.limit_of(ctx, name)
    local r = ctx.memory.rooms[name]
    if not room.window_of(ctx, name) then return ctx.limits.max_ready end
    local is_known = r and (route.is_held(ctx, name) or ctx.now >= r.held_us and ctx.now - r.held_us <= ANEW_US)
    return min(is_known and r.limit or r and anew(ctx, r) or START, ctx.limits.max_ready)
  end

  -- cut_slack: once a window, the limit falls by the number of jobs that were there at every look for held buckets. A
  -- quarter of the limit is left, because what workers take varies.
  local function cut_slack(r, now, window, undelivered)
    r.least = min(r.least, undelivered)
    if now - r.least_us <= window and now >= r.least_us then return end
    local spare = r.least - max(1, floor(r.limit / 4))
    local least = r.is_shared and START / 4 or 1 -- jobs of others stand before those that lie in a shared list
    if spare > 0 and r.limit > least then r.limit = max(least, r.limit - spare) end
    r.least, r.least_us = undelivered, now
  end

  -- note_burst: by a look workers have taken so many jobs since the one before.
  local function note_burst(r, now, burst)
    if burst >= r.burst or now - r.burst_us > BURST_US or now < r.burst_us then r.burst, r.burst_us = burst, now end
  end

  -- learn: use what a look has found: the number of undelivered jobs. `is_held_look`: held buckets are to have their
  -- turns.
  local function learn(ctx, name, r, undelivered, is_held_look)
    local now, window, most = ctx.now, room.window_of(ctx, name), ctx.limits.max_ready
    local taken = r.sent - undelivered
    local burst = taken - (r.seen or taken)
    r.doubled, r.extra = false, 0
    if burst ~= 0 or not r.seen then r.seen, r.seen_us = taken, now end
    if window then
      local age, is_held = now - r.since_us, route.is_held(ctx, name)
      local is_old = age > window
      if is_old then r.burst = 0 elseif burst > 0 and not r.is_old then note_burst(r, now, burst) end
      r.is_old = is_old
      if is_held then
        r.held_us = now
      else
        r.is_filled = true -- what is held next finds no room
        if now - r.held_us > ANEW_US or now < r.held_us then r.limit = anew(ctx, r) end
      end
      if is_old then
        if now - r.cut_us > window or now < r.cut_us then
          r.limit, r.cut_us = max(1, floor(r.limit * window / age)), now
        end
        r.least, r.least_us, most = huge, now, 0
      elseif is_held_look then
        if is_held then cut_slack(r, now, window, undelivered) end
        if undelivered == 0 and r.is_filled and r.limit < most then
          r.limit, r.doubled = min(2 * r.limit, most), true
        end
      end
      if r.limit < most then most, r.extra = r.limit, min(r.limit, most - r.limit) end
    end
    r.left = most - undelivered
  end

  -- look_at_list: look at a route that forwards. What a server finds in its list when it begins to send counts as just
  -- sent. What others push counts for limits.max_ready, and by the time for which it keeps the sent jobs waiting.
  local function look_at_list(ctx, name, r, is_held_look)
    local at, length, key, _, err = forward.look(r.entry, ctx.k)
    local window, most = room.window_of(ctx, name), ctx.limits.max_ready
    r.stream, r.forward, r.length = at.to, at, length
    if key then
      r.left, r.doubled = 0, false
      return note(ctx, 'wrong-type', key, err)
    end
    if not r.marks then
      r.marks, r.gone, r.done = {}, r.sent - length, r.sent - length
      if length > 0 then
        r.job = forward.newest(at)
        list_marks.add(ctx, r, 0)
      end
    end
    if length == 0 then r.is_shared = false elseif r.sent - length < r.gone then r.is_shared = true end
    local marks, taken, is_odd = r.marks, nil, false
    taken, r.gone, is_odd = list_marks.taken_of(ctx, r, length, window, false)
    list_marks.drop(r, taken)
    local first, is_full = marks[1], not r.is_shared and r.sent - r.gone >= r.limit
    local is_asked = ctx.now - (first and first.at or ctx.now) > (window or huge) or is_full or is_held_look
    if first and window and length < most and not is_odd and is_asked then
      taken, r.gone, is_odd = list_marks.taken_of(ctx, r, length, window, true)
      list_marks.drop(r, taken)
    end
    r.level = is_odd and (r.level or r.sent - r.done) or nil
    for _, one in ipairs(marks) do one.at = min(one.at, ctx.now) end -- where the clock stepped back
    r.since_us = marks[1] and marks[1].at or ctx.now
    learn(ctx, name, r, r.sent - r.gone, is_held_look)
    if ctx.now - r.refilled_us >= REFILL_US or ctx.now < r.refilled_us then
      r.refilled_us, r.refilled = ctx.now, r.sent
    end
    if r.is_shared and ctx.now - r.since_us <= (window or huge) then
      r.left = max(r.left, min(r.limit, most) - (r.sent - r.refilled))
    end
    taken_by(ctx, r, r.sent - r.gone)
    -- One more may enter for each that is gone, whoever took or deleted it: no more lie there than when that began.
    -- Where workers take the others and a job is pushed back each time, one more for every eight that are gone.
    if r.level then r.left = max(r.left, r.level + floor((r.sent - r.done - length) / 8) - length) end
    r.left = min(r.left, most - length)
    r.extra = max(0, min(r.extra, most - length - r.left))
    if r.left <= 0 and length >= most then r.doubled = false end
  end

  -- make_stream: create a stream that is missing; an empty one exists. Replies an error, or nil.
  local function make_stream(ctx, name, r)
    if call('EXISTS', r.stream) == 0 then return route.make(ctx.space, name) end
    if not record.names_route(ctx.rec, name) then
      call('SADD', ctx.k.routes, name) -- only operators have set this route: the reaper forgets it while it is empty
    end
  end

  -- glance: notice where the group of a stream of this length was moved. Where that made it skip entries, the count
  -- that was lost is set at once, so that the next move is seen too.
  local function glance(ctx, name, r, group, length)
    local p = position.glance(ctx, name, r.stream, group, length)
    if p.read or not p.skipped[1] then return end
    p.read = route.set_read(r.stream, group, max(0, length - group.pending)) or false
  end

  -- look_at_stream: look at a route with a ready stream of this length.
  local function look_at_stream(ctx, name, r, length, is_held_look)
    local undelivered, window = length, room.window_of(ctx, name)
    if r.era ~= ctx.memory.era then r.since_us, r.oldest_after = -huge, nil end
    -- The length is a cheap upper bound of what is undelivered. With the window off the group is read only where that
    -- bound is not enough, or where buckets are held: then the number decides how many of them have their turns.
    if length > 0 and (window or is_held_look or length >= ctx.limits.max_ready) then
      local group = route.group_of(r.stream)
      if group then glance(ctx, name, r, group, length) else route.make(ctx.space, name) end
      undelivered = group and route.undelivered(group, length) or length
      local delivered = group and group['last-delivered-id']
      if delivered and r.delivered and names.is_after(r.delivered, delivered) then r.wakes = r.sent end
      r.delivered = delivered
      local is_over = window and (ctx.now - r.since_us > window or ctx.now < r.since_us or undelivered >= r.limit)
      if window and group and not route.knows_lag(group, length) then
        r.oldest_after = nil -- it may have been deleted meanwhile
        undelivered = find_oldest(ctx, r, group) and max(undelivered, 1) or 0
      elseif undelivered > 0 and is_over and not find_oldest(ctx, r, group) then
        undelivered = 0
      end
    elseif length > 0 then
      r.looked = 0 -- where the length does not prove enough, the group is read later
    end
    if undelivered == 0 then r.since_us = ctx.now end
    r.base = length - r.sent
    learn(ctx, name, r, undelivered, is_held_look)
    if r.wakes == r.sent and undelivered > 0 then r.left = max(r.left, 1) end
    taken_by(ctx, r, undelivered)
  end

  -- look: look at a route; `length` is that of its stream, or an error.
  local function look(ctx, name, r, length, is_held_look)
    r.looked = ctx.calls
    local err = not r.entry and (is_error(length) or length == 0 and make_stream(ctx, name, r))
    if r.entry then
      look_at_list(ctx, name, r, is_held_look)
    elseif err then
      r.left, r.doubled = 0, false
      note(ctx, 'wrong-type', r.stream, err)
    else
      look_at_stream(ctx, name, r, length, is_held_look)
    end
    r.looked_us, r.era = ctx.now, ctx.memory.era
  end

  local function length_of(r) return not r.entry and pcall_redis('XLEN', r.stream) or nil end

  -- proves: whether what is known of a stream of this length proves that it takes one more job.
  local function proves(ctx, name, r, length)
    local now = ctx.now
    if r.left <= 0 or now < r.looked_us or now - r.looked_us > BELIEVED_US or r.era ~= ctx.memory.era then
      return false
    end
    local window = room.window_of(ctx, name)
    if window and now - r.since_us > window then return false end
    return type(length) == 'number' and length > 0 and length <= r.base + r.sent
  end

  -- of: the room of a route: `left` is how many more jobs it takes now. While buckets are held for it, it takes only
  -- theirs (`for_held`).
  -- reads   the stream      writes  the stream and its group where they are missing
  -- cost    1 call a route, 2 where it is empty or near a bound, and the bytes of one job where its workers are behind
  function room.of(ctx, name)
    local r = of_memory(ctx, name, forward.of(ctx.rec, name))
    ctx.rooms[name] = r
    if r.call ~= ctx.calls and route.is_held(ctx, name) then -- those that are held come first, in a later call
      r.call, r.left, r.extra, r.looked = ctx.calls, 0, 0, ctx.calls
    elseif r.call ~= ctx.calls then
      r.call = ctx.calls
      local length = length_of(r)
      if r.entry or not proves(ctx, name, r, length) then look(ctx, name, r, length, false) end
    elseif r.left <= 0 and r.looked ~= ctx.calls then
      look(ctx, name, r, length_of(r), false)
    end
    return r
  end

  -- is_silent: whether a route with held buckets needs no look now: its workers are behind and take nothing, and it was
  -- looked at less than `poll_us` ago.
  function room.is_silent(ctx, name, poll_us)
    local r, now, window = ctx.memory.rooms[name], ctx.now, room.window_of(ctx, name)
    return r and now - r.seen_us > SILENT_US and (not window or now - r.since_us > window)
      and now >= r.turned_us and now - r.turned_us < poll_us and r.era == ctx.memory.era
  end

  -- for_held: the room of a route for what waits in its line. Where some of it is due after that (`close`), it takes no
  -- other jobs in this call.
  function room.for_held(ctx, name)
    local r = room.known(ctx, name)
    ctx.rooms[name], r.call = r, ctx.calls
    look(ctx, name, r, length_of(r), true)
    return r
  end

  function room.close(ctx, r)
    r.is_filled, r.left, r.looked = r.left <= 0, min(r.left, 0), ctx.calls
  end

  -- beyond: take one job more than the route takes now, where up to twice the limit may enter: `act` lets it out.
  -- Replies nil where none may enter, else what `act` replies.
  function room.beyond(ctx, name, act)
    local r = ctx.rooms[name]
    local left = r.left
    if left > 0 or left + r.extra <= 0 or r.looked ~= ctx.calls then return nil end
    r.left = 1
    local reply = act()
    r.left = left - (1 - r.left)
    return reply
  end

  -- count: add the jobs that entered in this call to the figures.
  function room.count(ctx)
    for name, r in pairs(ctx.rooms) do
      local n = r.sent - r.counted
      if n > 0 then
        r.counted = r.sent
        context.count(ctx, 'dispatched:' .. name, n)
        if r.forward then context.count(ctx, 'forwarded', n) end
        if r.marks then list_marks.add(ctx, r, room.window_of(ctx, name) or SAMPLE_US) end
      end
    end
  end
end
