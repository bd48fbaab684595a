-- Buckets: what is true of one, and where it waits. Every step does the same four things with a bucket:
--   load     what is stored of it                          decide   what is true of it now (writes nothing)
--   place    where it waits from now on                    commit   write that
-- This file is the only one that reads or writes the sets in which buckets wait.
--
-- A place is the key of the sorted set in which a bucket stands, by its due:
--   k.schedule             it has work and waits for its due
--   k.held .. <route>      it has work, its due is over, and its route is full
--   k.rest                 it has no work, and its due is still to come: its next job may not leave before
--   k.paused               it has work, and an operator stopped it
--   k.full                 it has work, and as many of its jobs are in flight as may be
--   k.refused              it has work, and its budgets cannot be found
--   k.wait .. <budget>     it has work, its due is over, and it waits for its share of a budget
--   nil                    nothing of it is stored, or only jobs that nobody has looked at: it is due at once
-- A bucket stands in one place. So does a budget, under its id (32_chain), with the due at which it may go on (46_budget).
--
-- The state `s` of a bucket:
--   bucket, queue, p       its name, its queue's key, its policy
--   place, stored_due      where it stands, and its due there
--   due                    as it is now; nil: none, so at once
--   len, over              jobs in the queue that count, and those above its level, to be cut
--   level, stored_level    how many it may keep because its capacity was lowered under it; nil: its capacity
--   fresh                  something changed for it and has not been marked as having reached it; spreads: with others
--   retry_ready            a retry of it could leave, were it due
--   brake                  its quotas and its slow-down, where it has any
--   ends                   the end of its next job, where it comes to wait for a share

local bucket = {}
do
  local digits, is_error = base.digits, base.is_error
  local policy_of = record.policy_of

  local REST_MOST = 500    -- buckets at rest that one call forgets
  local FORGET_US = 100000 -- and how often they are forgotten: one at a time they would cost each wake three calls
  local STUCK_US = 1000000 -- a bucket that cannot go on is looked at again after so long, or its interval

  -- load: where some buckets stand, and their dues there.
  -- reads   schedule, rest, paused, held sets; waiting and refused where there are budgets
  -- writes  nothing      cost  1 call, 1 where buckets rest, 1 where settings are stored, 2 where there are budgets, 1 a missing one
  --         and held route
  function bucket.load(ctx, names)
    local k, places, dues = ctx.k, {}, {}
    if #names == 0 then return places, dues end
    local found = call('ZMSCORE', k.schedule, unpack(names))
    local resting, paused, refused, shares, full
    for i = 1, #names do
      local due = found[i]
      if due then
        places[i], dues[i] = k.schedule, due + 0
      else
        if resting == nil then
          resting = ctx.memory.rest_us < huge and pcall_redis('ZMSCORE', k.rest, unpack(names)) or false
        end
        if paused == nil then
          paused = ctx.rec.version and pcall_redis('ZMSCORE', k.paused, unpack(names)) or false
          refused = ctx.has_budgets and pcall_redis('ZMSCORE', k.refused, unpack(names)) or false
          shares = ctx.has_budgets and waiting.places(ctx, names) or false
          full = ctx.may_be_full and pcall_redis('ZMSCORE', k.full, unpack(names)) or false
        end
        due = resting and resting[i]
        if due then
          places[i], dues[i] = k.rest, due + 0
        elseif paused and paused[i] then
          places[i], dues[i] = k.paused, paused[i] + 0
        elseif shares and shares[i] then
          places[i], dues[i] = waiting.decode(ctx, shares[i])
        elseif full and full[i] then
          places[i], dues[i] = k.full, full[i] + 0
        elseif refused and refused[i] then
          places[i], dues[i] = k.refused, refused[i] + 0
        elseif ctx.held ~= '' then
          for name in gmatch(ctx.held, '%S+') do
            due = call('ZSCORE', k.held .. name, names[i])
            if due then
              places[i], dues[i] = k.held .. name, due + 0
              break
            end
          end
        end
      end
    end
    return places, dues
  end

  -- levels_of: the levels of some buckets, in their order; where no bucket has one (see `drain`) nothing is read.
  function bucket.levels_of(ctx, names)
    local levels = {}
    if #names == 0 or not ctx.has_levels then return levels end
    local found = call('HMGET', ctx.k.level, unpack(names))
    for i = 1, #names do levels[i] = tonumber(found[i] or nil) end
    return levels
  end

  -- before: what applied to a bucket when it was last put right, where that may not be what applies now; nil where it is. The second
  -- reply says that it must be marked.
  --   not reached by the change that spreads           what applied before that
  --   reached, and a setting of a glob ended since     what applied when it was reached
  --   a timed setting of its own name ended            that one
  local function before(ctx, name, p)
    local prev, ended_us = policy_of(ctx.prev, name), ctx.rec.ended_us
    local is_same = prev == p -- the very same policy: the change does not concern this bucket
    if is_same and ended_us == 0 then return nil, false end
    local of_page, reached_us = ctx.reached_of, nil
    if of_page and of_page[name] ~= nil then reached_us = of_page[name] else reached_us = call('HGET', ctx.k.reached, name) end
    if not reached_us then
      if is_same then return nil, false end
      return prev, true
    end
    if reached_us + 0 < ended_us then return record.as_of(ctx.rec, name, reached_us + 0), true end
    return p.over, false
  end

  -- goes_on: whether a bucket waits in its place for an order that holds no more.
  function bucket.goes_on(ctx, place, p, name)
    if place == ctx.k.paused then return not p.paused end
    if place == ctx.k.refused then return not p.refused end
    if place == ctx.k.full then return not slots.is_full(ctx, name, p) end
    return bucket.is_held(ctx, place) and place ~= ctx.k.held .. p.route
  end

  -- was: what a bucket must be put right from, if its policy is changed in this call: as `before`, or what applies now.
  function bucket.was(ctx, name)
    local p = policy_of(ctx.rec, name)
    return p and (ctx.prev and before(ctx, name, p) or p.over or p)
  end

  bucket.before = before

  -- decide: the state of a bucket, from what was loaded of it, into s (used again for one bucket after the other, for making a
  -- table for each is most of what this costs).
  -- A queue may hold its capacity, or its level where the capacity was lowered under it. Where a change has not reached this bucket
  -- yet, one that spreads or the end of a setting of its own, the larger of the old and the new capacity counts, and the due is
  -- re-anchored: last dispatch + the new interval. No due lies further ahead than one interval: beyond that, the clock stepped
  -- back. A bucket that is paused no more, or that another route keeps from going than its own, goes on now, at its rate: that wait
  -- counts neither as lateness nor as credit; one with a brake goes on at its end (43_brake). `p` is a policy that is not in force.
  -- reads   what was reached, while a change spreads      writes  nothing
  function bucket.decide(ctx, s, name, queue, len, place, due, level, p)
    local now = ctx.now
    p = p or ctx.rec.plain or policy_of(ctx.rec, name)
    s.bucket, s.queue, s.p, s.place, s.stored_due, s.stored_level = name, queue, p, place, due, level
    s.fresh, s.spreads, s.retry_ready, s.stuck, s.due_text, s.met, s.ends = false, false, false, false, false, false, false
    s.picked, s.turn_ends = false, false
    local keeps = p.capacity
    if level and level > keeps then keeps = level end
    local old, br, interval_us = p.over, false, p.interval_us
    if p.quotas or ctx.has_slow or ctx.has_windows or ctx.brakes then br = brake.of(ctx, name, p) end
    s.brake = br or false
    if br then
      if due and br.pace then due = br.pace end
      interval_us = brake.interval_us(br, p)
    end
    if ctx.prev then old, s.spreads = before(ctx, name, p) end
    if ctx.was and ctx.was[name] then old, s.spreads = ctx.was[name], ctx.prev ~= nil end
    if old then
      s.fresh = true
      keeps = max(keeps, old.capacity)
      if due and (old.period_us ~= p.period_us or old.count ~= p.count) then
        -- No earlier than now, unless it was due before: a faster rate makes up for nothing that was not promised then.
        due = max(brake.re_anchor(br, old, p, due), min(due, now))
      end
    end
    if due and due > now + interval_us then due = now + interval_us end
    if due and due <= now and place == ctx.k.rest then due = nil end
    if due and due < now and bucket.goes_on(ctx, place, p, name) then due = now end
    if br then due = brake.hold(ctx, br, p, due) end
    if len > keeps then s.over, len = len - keeps, keeps else s.over = 0 end
    s.due, s.len = due, len
    s.level = len > p.capacity and len or nil
    return s
  end

  -- where: the place of a bucket that nothing but its rate keeps from going. It is the only one who decides that.
  function bucket.where(k, has_work, due, now)
    if has_work then return k.schedule end
    if due > now then return k.rest end
    return nil
  end

  -- held_place: where a bucket waits that its route keeps from going.
  function bucket.held_place(ctx, s)
    return ctx.k.held .. s.p.route
  end

  -- place: where a bucket waits from now on, as its state has it.
  function bucket.place(ctx, s)
    local has_work, p = s.len > 0 or s.retry_ready, s.p
    if has_work and (p.parent or p.concurrency) then
      if p.refused then return ctx.k.refused end
      if p.paused then return ctx.k.paused end
      if p.concurrency and slots.is_full(ctx, s.bucket, p) then return ctx.k.full end
      if p.parent and s.due <= ctx.now and s.place == waiting.key(ctx, p.parent) then return s.place end
    end
    if has_work and p.paused then return ctx.k.paused end
    -- A held one that is due stays until it is released, or its policy names another route.
    if has_work and s.due <= ctx.now and s.place == bucket.held_place(ctx, s) then return s.place end
    return bucket.where(ctx.k, has_work, s.due, ctx.now)
  end

  -- is_held: whether a place is one of those in which buckets wait for their route.
  function bucket.is_held(ctx, place)
    local k = ctx.k
    if place == nil or place == k.schedule or place == k.rest then return false end
    return sub(place, 1, #k.held) == k.held
  end

  -- word: a place in a word, for people: due (it is on the schedule), rest, paused, refused, full, share, held or none.
  function bucket.word(ctx, place)
    local k = ctx.k
    local words = { [k.schedule] = 'due', [k.rest] = 'rest', [k.paused] = 'paused', [k.refused] = 'refused', [k.full] = 'full' }
    return place == nil and 'none' or words[place] or waiting.budget(ctx, place) and 'share' or 'held'
  end

  -- any_stands: whether any bucket stands somewhere, the held ones aside: at rest only those count whose due is still to come.
  function bucket.any_stands(k, now)
    return call('EXISTS', k.schedule, k.paused, k.refused, k.full) > 0 or call('ZCOUNT', k.rest, '(' .. digits(now), '+inf') > 0
  end

  local function list_of(lists, key)
    local list = lists[key]
    if not list then
      list = {}
      lists[key] = list
    end
    return list
  end

  -- commit: note where a bucket waits from now on, with its due. It is written by `flush`, with all others of the call.
  function bucket.commit(ctx, s, place)
    local from, due = s.place, s.due
    if place == from and due == s.stored_due and not s.ends then return end
    if ctx.has_budgets then
      if waiting.budget(ctx, from) then
        s.ends = s.ends or place == from and waiting.ends_of(ctx, from, s.bucket, s.stored_due)
        waiting.leave(ctx, from, s.bucket, s.stored_due)
        from = nil
      end
      if waiting.budget(ctx, place) then
        waiting.join(ctx, place, s.bucket, due, s.ends or nil)
        place = nil
      end
      s.ends = false
    end
    if place == ctx.k.refused and s.place ~= place then context.note(ctx, 'no-budget', s.bucket, s.p and s.p.refused) end
    local moves = ctx.moves or { add = {}, remove = {} }
    ctx.moves = moves
    if from and from ~= place then
      local list = list_of(moves.remove, from)
      list[#list + 1] = s.bucket
    end
    if place then
      local list, n = list_of(moves.add, place), nil
      n = #list
      if due ~= moves.due then moves.due, moves.due_text = due, digits(due) end -- many have the same
      list[n + 1], list[n + 2] = moves.due_text, s.bucket
      if place == ctx.k.rest and due < ctx.memory.rest_us then ctx.memory.rest_us = due end
    end
  end

  -- commit_all: the same for many plain buckets (58_dispatch): lists of dues and names that are added, and of names that leave.
  function bucket.commit_all(ctx, to_schedule, to_rest, from_schedule, from_rest)
    local k, moves = ctx.k, ctx.moves
    if not moves then
      ctx.moves = { add = { [k.schedule] = to_schedule, [k.rest] = to_rest },
        remove = { [k.schedule] = from_schedule, [k.rest] = from_rest } }
      return
    end
    local function join(lists, key, more)
      local list = list_of(lists, key)
      for i = 1, #more do list[#list + 1] = more[i] end
    end
    join(moves.add, k.schedule, to_schedule)
    join(moves.add, k.rest, to_rest)
    join(moves.remove, k.schedule, from_schedule)
    join(moves.remove, k.rest, from_rest)
  end

  -- add_to: write buckets to a set other than the schedule. Where its key holds something else they go on the schedule, for what
  -- has left must count, and the reply is false.
  local function add_to(ctx, key, list)
    local added = pcall_redis('ZADD', key, unpack(list))
    if is_error(added) then
      context.note(ctx, 'wrong-type', key)
      local later = ctx.now + STUCK_US
      for i = 1, #list, 2 do list[i] = digits(max(list[i] + 0, later)) end
      call('ZADD', ctx.k.schedule, unpack(list))
      return false
    end
    local name = sub(key, 1, #ctx.k.held) == ctx.k.held and sub(key, #ctx.k.held + 1)
    if name and not find(' ' .. ctx.held .. ' ', ' ' .. name .. ' ', 1, true) then
      route.write_held(ctx, ctx.held == '' and name or ctx.held .. ' ' .. name)
    end
    return true
  end

  -- flush: write what was committed. Replies whether that changed the schedule.
  -- writes  schedule, rest, held sets; the names of the held routes      cost  1 call a set, and one more where it is left
  function bucket.flush(ctx)
    if ctx.write_budgets then ctx.write_budgets(ctx) end
    if ctx.waits then waiting.flush(ctx) end
    if ctx.braked then brake.flush(ctx) end
    local moves, marks = ctx.moves, ctx.marks
    if marks then
      ctx.marks = false
      call('HSET', ctx.k.reached, unpack(marks))
    end
    if not moves then return false end
    ctx.moves = false
    local schedule = ctx.k.schedule
    local add, remove = moves.add[schedule], moves.remove[schedule]
    for key, list in pairs(moves.remove) do
      if list[1] then (key == schedule and call or pcall_redis)('ZREM', key, unpack(list)) end
    end
    if add and add[1] then call('ZADD', schedule, unpack(add)) end
    local all_written = true
    for key, list in pairs(moves.add) do
      if key ~= schedule and list[1] then all_written = add_to(ctx, key, list) and all_written end
    end
    if moves.remove[ctx.k.paused] then settings.forget_if_none(ctx) end -- it may have been the last trace of them
    return not all_written or add ~= nil and add[1] ~= nil or remove ~= nil and remove[1] ~= nil
  end

  -- first_due: the earliest due of the schedule, or `huge`.
  function bucket.first_due(ctx)
    local first = call('ZRANGE', ctx.k.schedule, '0', '0', 'WITHSCORES')
    return first[2] and first[2] + 0 or huge
  end

  -- due: the buckets that are due, the longest due first, at most so many: a list of names and dues as texts; nil and the earliest
  -- due where none is. `first` is that, where it is known.
  function bucket.due(ctx, most, first)
    first = first or bucket.first_due(ctx)
    if first > ctx.now then return nil, first end
    return call('ZRANGE', ctx.k.schedule, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES')
  end

  -- page: a page of one of the sets, for the sweep: names, dues, and where it goes on.
  function bucket.page(ctx, place, cursor)
    local page, names, dues = call('ZSCAN', place, cursor, 'COUNT', ctx.page), {}, {}
    for i = 1, #page[2], 2 do
      names[#names + 1] = page[2][i]
      dues[#dues + 1] = page[2][i + 1] + 0
    end
    return names, dues, page[1]
  end

  -- forget_rested: drop buckets at rest whose due is over: nothing of them stays. Replies whether more could be dropped.
  -- reads, writes  rest      cost  3 calls and O(REST_MOST), ten times a second; else none
  function bucket.forget_rested(ctx)
    local m, rest = ctx.memory, ctx.k.rest
    if ctx.now < m.rest_us or ctx.now >= m.forgot_us and ctx.now < m.forgot_us + FORGET_US then return false end
    -- A change that spreads, or the end of a setting of its own, may find that such a due is not over yet.
    if ctx.prev or settings.first_end(ctx) <= ctx.now then return false end
    local function first_due()
      local first = call('ZRANGE', rest, '0', '0', 'WITHSCORES')
      return first[2] and first[2] + 0 or huge
    end
    if m.rest_us == 0 then -- it is not known
      m.rest_us = first_due()
      if ctx.now < m.rest_us then return false end
    end
    local n = call('ZCOUNT', rest, '-inf', ctx.now_text)
    if n > 0 then call('ZREMRANGEBYRANK', rest, '0', min(n, REST_MOST) - 1) end
    if n > REST_MOST then return true end
    if n > 0 then m.forgot_us = ctx.now end
    m.rest_us = first_due()
    return false
  end

  -- release: put up to `most` buckets that a route holds back on the schedule, the earliest due first. They go on now, at their
  -- rate: the time for which they were held counts neither as lateness nor as credit.
  -- reads, writes  a held set, the schedule
  function bucket.release(ctx, name, most)
    local held = ctx.k.held .. name
    local back = call('ZRANGE', held, '0', most - 1, 'WITHSCORES')
    if #back > 0 then
      local add, gone = {}, {}
      for i = 1, #back, 2 do
        add[i], add[i + 1] = digits(max(back[i + 1] + 0, ctx.now)), back[i]
        gone[#gone + 1] = back[i]
      end
      call('ZADD', ctx.k.schedule, unpack(add))
      call('ZREM', held, unpack(gone))
    end
    if call('EXISTS', held) == 1 then return end
    local others = {}
    for _, other in ipairs(route.names_of(ctx.held)) do
      if other ~= name then others[#others + 1] = other end
    end
    route.write_held(ctx, table.concat(others, ' '))
  end

  -- release_where_room: the same for every held route that has room again.
  function bucket.release_where_room(ctx)
    for _, name in ipairs(route.names_of(ctx.held)) do
      local left = route.room(ctx, name, true).left
      if left > 0 or call('EXISTS', ctx.k.held .. name) == 0 then
        bucket.release(ctx, name, max(1, min(left, ctx.limits.batch)))
      end
    end
  end

  -- stick: a bucket cannot go on for a reason that nobody reports: it is looked at again later, and the others go on.
  function bucket.stick(ctx, s)
    s.due = max(s.due or ctx.now, ctx.now + max(STUCK_US, s.p.interval_us))
    bucket.commit(ctx, s, ctx.k.schedule)
  end

  -- keep_level: write the level of a bucket where it changed.
  function bucket.keep_level(ctx, s)
    if s.level == s.stored_level then return end
    if s.level then
      call('HSET', ctx.k.level, s.bucket, s.level)
      ctx.has_levels = true
    else
      call('HDEL', ctx.k.level, s.bucket)
    end
    s.stored_level = s.level
  end

  -- expect: these buckets are decided next: which of them a change has reached is read in one call.
  function bucket.expect(ctx, names)
    if not ctx.prev or #names == 0 then return end
    local found, of_page = call('HMGET', ctx.k.reached, unpack(names)), {}
    for i, name in ipairs(names) do of_page[name] = found[i] end
    ctx.reached_of = of_page
  end

  -- mark_reached: what changed has reached this bucket. It is written with its place (`flush`).
  function bucket.mark_reached(ctx, s)
    if s.spreads then
      ctx.marks = ctx.marks or {}
      local n = #ctx.marks
      ctx.marks[n + 1], ctx.marks[n + 2] = s.bucket, ctx.now_text
    end
    if s.p.over then settings.drop_over(ctx, s.bucket) end
    s.fresh, s.spreads = false, false
  end

  -- length_of: how many jobs are in a queue; nil, with a note, where the key holds something else.
  function bucket.length_of(ctx, queue)
    local len = pcall_redis('LLEN', queue)
    if is_error(len) then
      context.note(ctx, 'wrong-type', queue)
      return nil
    end
    return len
  end
end
