-- needs: base
-- Ids: what is known of submitted jobs by their ids.
--
-- <prefix>:jobs:<bucket> is a hash of the submitted jobs that wait in a bucket, also those without a given id:
--   <id>        the job with this id: "<state> <since_us> <eta_us> <attempt> <accepted_us> <deadline_us> <place>"
--     state        q in the queue, d delayed, r backing off; Q, D, R: the same, but cancelled
--     since_us     since when it waits there: its accept, or its failure
--     eta_us       the earliest time at which it could leave, as estimated at the accept; of a job that backs off the
--                  end of its back-off
--     accepted_us  the time of its accept; 0: its producer gave no id, or it is not known any more
--     deadline_us  a job in the queue or delayed is dropped at its turn after that, and frees its id now; 0: none
--     place        of a delayed job the time for which it waits, of one that backs off its last entry, else -
--   <id> <key>  what has changed of one job since it was stored: '': it is cancelled, and dropped at its turn; else the
--               envelope that has replaced it. The key tells it from other jobs with that id: its state (q, d or r) and
--               `since_us`, or of a job that backs off its last entry.
--   ' gone'     "<queue> <delayed> <backing off>": jobs that have waited there since these times, or longer, are gone:
--               they were purged or cut with so many others that they were not read
-- A line is removed with its job. The key has no expiry: it is deleted when nothing waits in the bucket any more.
--
-- <prefix>:ids:<bucket> is a sorted set of the given ids of jobs that have left, by the time of the accept. While the
-- policy's `dedup` lasts, a job with the same id is a duplicate. It expires with its youngest id, and has `capacity` +
-- `dedup` / interval of them at most: the oldest are forgotten.

local ids = {}
do
  local digits = base.digits

  local LINE = '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$'
  local GONE, GONE_LINE = ' gone', '^(%d+) (%d+) (%d+)$'
  local FORGET_MOST = 100 -- ids that one call forgets
  local PAGES_MOST = 20 -- pages of so many fields that a purge reads
  local PROBES = '3'

  -- field_of: the field with what has changed of a job. `place`: its last entry, or since when it waits.
  local function field_of(id, state, place) return id .. ' ' .. state .. place end

  local function field_of_line(id, it)
    local state = lower(it.state)
    return field_of(id, state, state == 'r' and it.place or digits(it.since_us))
  end

  local function read_line(line)
    local state, since, eta, attempt, accepted, deadline, place = match(line or '', LINE)
    if not state then return nil end
    return { state = state, since_us = since + 0, eta_us = eta + 0, attempt = attempt + 0, accepted_us = accepted + 0,
      deadline_us = deadline + 0, place = place }
  end

  local function write(ctx, name, id, it, ...)
    local line = table.concat({ it.state, digits(it.since_us), digits(it.eta_us), digits(it.attempt),
      digits(it.accepted_us), digits(it.deadline_us or 0), it.place }, ' ')
    call('HSET', ctx.k.jobs .. name, id, line, ...)
  end

  -- gone_of: since when a job in the queue, delayed or backing off must wait, if it is not gone.
  local function gone_of(line)
    local q, d, r = match(line or '', GONE_LINE)
    return { q = tonumber(q or 0), d = tonumber(d or 0), r = tonumber(r or 0) }
  end

  -- find: the job with this id that waits, or that is cancelled and still takes up room; or nil, also where it is too
  -- late for it to leave. The second reply is
  -- the earliest `since_us` of another one with this id.
  -- cost  1 call
  function ids.find(ctx, name, id)
    local found = call('HMGET', ctx.k.jobs .. name, id, GONE)
    local it, gone = read_line(found[1]), gone_of(found[2])
    local next_us = max(ctx.now, gone.q + 1, gone.d + 1, gone.r + 1, it and it.since_us + 1 or 0)
    local is_late = it and it.deadline_us > 0 and it.deadline_us < ctx.now
    if it and (is_late or it.since_us <= gone[lower(it.state)]) then it = nil end
    return it, next_us
  end

  -- is_cancelled: whether this job is cancelled.
  function ids.is_cancelled(it) return find(it.state, '%u') ~= nil end

  -- waiting: the job with this id that waits and is not cancelled, or nil. A job whose queue somebody deleted does not
  -- wait. The second reply is that of `find`.
  -- cost  1 call, and 1 more for a job that is not in the queue
  function ids.waiting(ctx, s, id)
    local it, next_us = ids.find(ctx, s.bucket, id)
    if not it or ids.is_cancelled(it) then return nil, next_us end
    local is_there = s.len > 0
    if it.state ~= 'q' then
      is_there = call('EXISTS', (it.state == 'd' and ctx.k.delayed or ctx.k.retry) .. s.bucket) == 1
    end
    return is_there and it or nil, next_us
  end

  -- wrong_type: the refusal where a key holds something else, or nil.
  function ids.wrong_type(ctx, name)
    return base.not_a('hash', 'HLEN', ctx.k.jobs .. name) or base.not_a('sorted set', 'ZCARD', ctx.k.ids .. name)
  end

  -- is_remembered: whether a job with this id that has left was accepted within `dedup`.
  function ids.is_remembered(ctx, name, p, id)
    local accepted = tonumber(call('ZSCORE', ctx.k.ids .. name, id) or nil)
    return accepted ~= nil and accepted + p.dedup_us > ctx.now
  end

  -- drop_stale: probe some fields where there are more than jobs wait, and drop those that are about jobs that are
  -- gone.
  local function drop_stale(ctx, name, len)
    local key = ctx.k.jobs .. name
    local more = call('HLEN', key) - len
    if more <= 0 or more <= call('ZCARD', ctx.k.delayed .. name) + call('ZCARD', ctx.k.retry .. name) then return end
    local gone, some = gone_of(call('HGET', key, GONE)), call('HRANDFIELD', key, PROBES, 'WITHVALUES')
    for i = 1, #some, 2 do
      local state, since = match(some[i], ' ([qd])(%d+)$')
      local it = not state and read_line(some[i + 1])
      if it then state, since = lower(it.state), it.since_us end
      if state and since + 0 <= gone[state] then call('HDEL', key, some[i]) end
    end
  end

  -- accept: a job waits in this state from `o.accepted_us` on, and until `eta_us` at least. `place` is as in its line.
  -- `len`: of the queue.
  -- writes  jobs      cost  2 calls, and 5 more where there may be lines of jobs that are gone
  function ids.accept(ctx, name, o, state, eta_us, place, len)
    write(ctx, name, o.id, {
      state = state, since_us = o.accepted_us, eta_us = eta_us, attempt = 1, deadline_us = o.deadline_us,
      accepted_us = o.is_given and o.accepted_us or 0, place = place,
    })
    drop_stale(ctx, name, len)
  end

  -- remember: jobs with these ids have left at least once: { id, time of the accept, ... }. Each is remembered for the
  -- rest of `dedup`.
  -- writes  ids      cost  1 call an id, and 4
  local function remember(ctx, name, p, list)
    local key, most, latest = ctx.k.ids .. name, p.capacity + floor(p.dedup_us / max(1, p.step)), 0
    for i = 1, #list, 2 do
      local accepted = list[i + 1]
      if accepted + p.dedup_us > ctx.now then
        call('ZADD', key, digits(accepted), list[i])
        latest = max(latest, accepted)
      end
    end
    if latest == 0 then return end
    local ms = digits(ceil((latest + p.dedup_us - ctx.now) / 1000))
    if call('PEXPIRE', key, ms, 'GT') == 0 then call('PEXPIRE', key, ms, 'NX') end
    local over = call('ZCARD', key) - most
    local old = call('ZCOUNT', key, '-inf', digits(ctx.now - p.dedup_us))
    local gone = min(FORGET_MOST, max(over, old))
    if gone > 0 then call('ZREMRANGEBYRANK', key, '0', gone - 1) end
  end

  -- cancel: a waiting job is cancelled: it is dropped at its turn. One that backs off has left before, so its id stays
  -- taken.
  function ids.cancel(ctx, name, p, id, it)
    local field = field_of_line(id, it)
    if it.state == 'r' then remember(ctx, name, p, { id, it.accepted_us }) end
    it.state = upper(it.state)
    write(ctx, name, id, it, field, '')
  end

  -- replace: another envelope, with these options, counts for a waiting job from now on; nil: only its line changes.
  function ids.replace(ctx, name, o, it, text)
    local id = o.id
    it.deadline_us = it.state ~= 'r' and o.deadline_us or 0
    if text then write(ctx, name, id, it, field_of_line(id, it), text) else write(ctx, name, id, it) end
  end

  -- at_turn: what is known of a job at its turn, or nil: { it: its line, nil where it has none, field, changed: nil, ''
  -- where it is cancelled, or the envelope that has replaced it }. It waits in the queue (`state` q), is delayed (d) or
  -- backs off (r); `place`: since when, as `accepted_us`, or its last entry.
  -- cost  1 call
  function ids.at_turn(ctx, name, id, state, place)
    local field = field_of(id, state, state == 'r' and place or digits(place or 0))
    local found = call('HMGET', ctx.k.jobs .. name, id, field)
    local it = read_line(found[1])
    if it and field_of_line(id, it) ~= field then it = nil end -- it is about another job
    return { it = it, field = field, changed = found[2] or nil, is_alone = not found[1] }
  end

  -- accepted_of: the time by which a job at its turn is remembered; 0: it is not.
  local function accepted_of(o, known)
    if known.it then return known.it.accepted_us end
    return known.is_alone and o.accepted_us or 0
  end

  -- dropped: a job was taken away: its id is free.
  -- writes  jobs      cost  1 call, 2 where it was changed
  function ids.dropped(ctx, name, id, known)
    if known.it then call('HDEL', ctx.k.jobs .. name, id) end
    if known.changed then call('HDEL', ctx.k.jobs .. name, known.field) end
  end

  -- left: a job has left its bucket. Its id is remembered for the rest of `dedup`.
  -- writes  jobs, ids      cost  1 call, and 4 for a given id
  function ids.left(ctx, name, p, o, known)
    ids.dropped(ctx, name, o.id, known)
    remember(ctx, name, p, { o.id, accepted_of(o, known) })
  end

  -- backs_off: a job with this id backs off until `ends`; `entry` was its last one. Where another job with the id waits
  -- by now, that one keeps the line.
  -- writes  jobs, ids      cost  4 calls
  function ids.backs_off(ctx, name, id, entry, attempt, ends)
    local it, next_us = ids.find(ctx, name, id)
    if it and not ids.is_cancelled(it) then return end
    local accepted = call('ZSCORE', ctx.k.ids .. name, id)
    if accepted then call('ZREM', ctx.k.ids .. name, id) end
    write(ctx, name, id, {
      state = 'r', since_us = next_us, eta_us = ends, attempt = attempt, place = entry,
      accepted_us = accepted and accepted + 0 or 0,
    })
  end

  -- drop_lines: remove the fields about jobs in these states, as far as a bounded number of pages reaches. Ids of jobs
  -- that backed off are remembered. Replies whether that was all of them.
  local function drop_lines(ctx, name, p, states)
    local key, cursor, left = ctx.k.jobs .. name, '0', {}
    for _ = 1, PAGES_MOST do
      local page, gone = call('HSCAN', key, cursor, 'COUNT', FORGET_MOST), {}
      for i = 1, #page[2], 2 do
        local field, it = page[2][i], nil
        local state = match(field, ' ([qdr])%S+$')
        if not state and field ~= GONE then
          it = read_line(page[2][i + 1])
          state = it and lower(it.state)
        end
        if state and states[state] then
          gone[#gone + 1] = field
          if it and state == 'r' then base.append(left, field, it.accepted_us) end
        end
      end
      if gone[1] then call('HDEL', key, unpack(gone)) end
      cursor = page[1]
      if cursor == '0' then break end
    end
    remember(ctx, name, p, left)
    return cursor == '0'
  end

  -- forget_waiting: all jobs that waited in these states ('q', 'd', 'r') are gone, those of the queue where they have
  -- waited since `till_us`, nil: now, or longer. A mark says so where they are too many to be removed: after a step
  -- back of the clock it reaches too far, or not far enough.
  -- writes  jobs      cost  2 calls; for all, some more for each FORGET_MOST of them
  function ids.forget_waiting(ctx, name, p, states, till_us)
    local key = ctx.k.jobs .. name
    if not till_us and drop_lines(ctx, name, p, states) then return end
    local found = call('HMGET', key, GONE)
    local gone, till = gone_of(found[1]), till_us or ctx.now
    for state in pairs(states) do gone[state] = max(gone[state], till) end
    call('HSET', key, GONE, table.concat({ digits(gone.q), digits(gone.d), digits(gone.r) }, ' '))
  end

  -- forget_lines: nothing waits in these buckets any more.
  function ids.forget_lines(ctx, names)
    local all = {}
    for i, name in ipairs(names) do all[i] = ctx.k.jobs .. name end
    if all[1] then call('UNLINK', unpack(all)) end
  end
end
