-- needs: base, base.call, pace.brake, policy.settings, route, route.room, tree.waiting
-- Places: the sets in which buckets and budgets wait. This file is the only one that reads or writes them.
--
-- A place is the key of the sorted set in which a bucket stands, by its due:
--   k.schedule             it has work and waits for its due
--   k.wait .. {<route>}    it is held: it has work, its due is over, and its route takes no more (route/room, tree/waiting)
--   k.rest                 it has no work, and its due is still to come: its next job may not leave before
--   k.paused               it has work, and an operator stopped it
--   k.full                 it has work, and as many of its jobs are in flight as may be
--   k.refused              it has work, and its budgets cannot be found
--   k.wait .. <budget>     it has work, its due is over, and it waits for its share of a budget (tree/waiting)
--   nil                    nothing of it is stored, or only jobs that nobody has looked at: it is due at once
-- A bucket stands in one place. So does a budget, under its id (policy/chain), with the due at which it may go on (tree/budget).
-- Which one it is, `bucket.place` decides (queue/bucket) and `budget` for budgets; `commit` notes it, and `flush` writes it.

local places = {}
do
  local digits, is_error, seen, write = base.digits, base.is_error, base.seen, base.write

  local REST_MOST = 500    -- buckets at rest that one call forgets
  local FORGET_US = 100000 -- and how often they are forgotten: one at a time they would cost each wake three calls
  local AGAIN_US = 1000000 -- where a set cannot be written, its buckets are looked at again after so long

  -- load: where some buckets stand, and their dues there. `found` are the dues on the schedule, where they were read already.
  -- reads   schedule, rest, paused; waiting where there are budgets or any is held, refused there and where anything is set (`within` may be)
  -- writes  nothing      cost  1 call, 1 where buckets rest, 1 where settings are stored, 2 where there are budgets, 1 where any is held
  function places.load(ctx, names, found)
    local k, stands, dues = ctx.k, {}, {}
    if #names == 0 then return stands, dues end
    found = found or call('ZMSCORE', k.schedule, unpack(names))
    local resting, paused, refused, shares, full
    for i = 1, #names do
      local due = found[i]
      if due then
        stands[i], dues[i] = k.schedule, due + 0
      else
        if resting == nil then
          resting = ctx.memory.rest_us < huge and seen(pcall_redis('ZMSCORE', k.rest, unpack(names))) or false
        end
        if paused == nil then
          paused = ctx.rec.version and seen(pcall_redis('ZMSCORE', k.paused, unpack(names))) or false
          refused = (ctx.has_budgets or ctx.rec.version) and seen(pcall_redis('ZMSCORE', k.refused, unpack(names))) or false
          shares = (ctx.has_budgets or ctx.held ~= '') and waiting.places(ctx, names) or false
          full = ctx.may_be_full and seen(pcall_redis('ZMSCORE', k.full, unpack(names))) or false
        end
        due = resting and resting[i]
        if due then
          stands[i], dues[i] = k.rest, due + 0
        elseif paused and paused[i] then
          stands[i], dues[i] = k.paused, paused[i] + 0
        elseif shares and shares[i] then
          stands[i], dues[i] = waiting.decode(ctx, shares[i])
        elseif full and full[i] then
          stands[i], dues[i] = k.full, full[i] + 0
        elseif refused and refused[i] then
          stands[i], dues[i] = k.refused, refused[i] + 0
        end
      end
    end
    return stands, dues
  end

  local one_name, NOT_SCHEDULED = {}, { false } -- used again by every call

  -- find: where one bucket stands, and its due there: as `load`, without its lists.
  -- cost    1 call where it is on the schedule, or nothing but its rate can keep it from going and none rests; else as `load`
  function places.find(ctx, name)
    local k, m = ctx.k, ctx.memory
    local due = call('ZSCORE', k.schedule, name)
    if due then return k.schedule, due + 0 end
    if ctx.is_simple and ctx.held == '' then
      due = m.rest_us < huge and seen(pcall_redis('ZSCORE', k.rest, name))
      if type(due) == 'string' then return k.rest, due + 0 end
      return nil, nil
    end
    one_name[1] = name
    local stands, dues = places.load(ctx, one_name, NOT_SCHEDULED)
    return stands[1], dues[1]
  end

  -- is_held: whether a place is one of those in which buckets wait for their route.
  function places.is_held(ctx, place)
    return waiting.route(ctx, place) ~= nil
  end

  -- word: a place in a word, for people: due (it is on the schedule), rest, paused, refused, full, share, held or none.
  function places.word(ctx, place)
    local k = ctx.k
    local words = { [k.schedule] = 'due', [k.rest] = 'rest', [k.paused] = 'paused', [k.refused] = 'refused', [k.full] = 'full' }
    return place == nil and 'none' or words[place] or waiting.budget(ctx, place) and 'share' or 'held'
  end

  -- any_stands: whether any bucket stands somewhere, the held ones aside: at rest only those count whose due is still to come.
  function places.any_stands(k, now)
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

  -- note: a node leaves one of the sets, waiting sets aside, for another one, in which it stands with this due; nil: none. `refused` says
  -- why its budgets cannot be found, where they cannot.
  function places.note(ctx, id, from, to, due, refused)
    local moves = ctx.moves
    if not moves then
      moves = { add = {}, remove = {} }
      ctx.moves = moves
    end
    if from and from ~= to then
      local list = list_of(moves.remove, from)
      list[#list + 1] = id
    end
    if to then
      local list = list_of(moves.add, to)
      local n = #list
      if due ~= moves.due then moves.due, moves.due_text = due, digits(due) end -- many have the same
      list[n + 1], list[n + 2] = moves.due_text, id
      if to == ctx.k.rest and due < ctx.memory.rest_us then ctx.memory.rest_us = due end
      if to == ctx.k.refused and from ~= to then context.note(ctx, 'no-budget', id, refused) end
    end
  end

  -- schedule: a bucket leaves the schedule or the rest, where it stands in one of them, for the schedule. It is written at once.
  function places.schedule(ctx, name, from, due)
    local k = ctx.k
    if from == k.rest then pcall_redis('ZREM', k.rest, name) end
    call('ZADD', k.schedule, digits(due), name)
  end

  -- resting: the list of those who come to rest in this call, or stay there: of each the due and the name.
  function places.resting(ctx)
    if not ctx.moves then ctx.moves = { add = {}, remove = {} } end
    return list_of(ctx.moves.add, ctx.k.rest)
  end

  -- commit: note where a bucket waits from now on, with its due. It is written by `flush`, with all others of the call.
  function places.commit(ctx, s, place)
    local from, due = s.place, s.due
    if s.brake and (not place or place == ctx.k.rest) then brake.rests(ctx, s.brake) end
    if place == from and due == s.stored_due and not s.ends then return end
    local held_for, stayed = waiting.route(ctx, place), place == from
    if waiting.is_set(ctx, from) then
      s.ends = s.ends or stayed and waiting.ends_of(ctx, from, s.bucket, s.stored_due)
      waiting.leave(ctx, from, s.bucket, s.stored_due)
      from = nil
    end
    if held_for then
      route.hold(ctx, held_for)
      if not stayed then s.ends = room.turn_of(ctx, s) end
    end
    if waiting.is_set(ctx, place) then
      waiting.join(ctx, place, s.bucket, due, s.ends or nil)
      place = nil
    end
    s.ends = false
    places.note(ctx, s.bucket, from, place, due, s.p and s.p.refused)
  end

  -- commit_all: the same for many plain buckets (queue/plain): lists of dues and names that are added, and of names that leave.
  function places.commit_all(ctx, to_schedule, to_rest, from_schedule, from_rest)
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
    if write(pcall_redis, 'ZADD', key, list) then
      context.note(ctx, 'wrong-type', key)
      local later = ctx.now + AGAIN_US
      for i = 1, #list, 2 do list[i] = digits(max(list[i] + 0, later)) end
      write(call, 'ZADD', ctx.k.schedule, list)
      return false
    end
    return true
  end

  local function write_all(ctx)
    if ctx.write_budgets then ctx.write_budgets(ctx) end
    if ctx.waits then waiting.flush(ctx) end
    if ctx.braked then brake.flush(ctx) end
    local moves, marks = ctx.moves, ctx.marks
    if marks then
      ctx.marks = false
      write(call, 'HSET', ctx.k.reached, marks)
    end
    if not moves then return false end
    ctx.moves = false
    local schedule = ctx.k.schedule
    local add, remove = moves.add[schedule], moves.remove[schedule]
    for key, list in pairs(moves.remove) do
      write(key == schedule and call or pcall_redis, 'ZREM', key, list)
    end
    if add then write(call, 'ZADD', schedule, add) end
    local all_written = true
    for key, list in pairs(moves.add) do
      if key ~= schedule and list[1] then all_written = add_to(ctx, key, list) and all_written end
    end
    if moves.remove[ctx.k.paused] then settings.forget_if_none(ctx) end -- it may have been the last trace of them
    return not all_written or add ~= nil and add[1] ~= nil or remove ~= nil and remove[1] ~= nil
  end

  -- flush: write what was committed. Replies whether that changed the schedule. Where it raises, nothing is believed of budgets any more.
  -- writes  schedule, rest, waiting sets      cost  1 call a set, and one more where it is left
  function places.flush(ctx)
    local has_changed, budgets = write_all(ctx), ctx.memory.budgets
    if budgets and budgets.call == ctx.calls then budgets.is_written = true end -- else it is of an earlier call
    return has_changed
  end

  -- first_due: the earliest due of the schedule, or `huge`.
  function places.first_due(ctx)
    local first = call('ZRANGE', ctx.k.schedule, '0', '0', 'WITHSCORES')
    return first[2] and first[2] + 0 or huge
  end

  -- due: the buckets that are due, the longest due first, at most so many: a list of names and dues as texts; nil and the earliest
  -- due where none is. `first` is that, where it is known. None was due before its partition went on.
  function places.due(ctx, most, first)
    first = first or places.first_due(ctx)
    if first > ctx.now then return nil, first end
    local list = call('ZRANGE', ctx.k.schedule, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES')
    if first < ctx.resumed_at then
      for i = 2, #list, 2 do
        if list[i] + 0 < ctx.resumed_at then list[i] = digits(ctx.resumed_at) end
      end
    end
    return list
  end

  -- page: a page of one of the sets, for the sweep: names, dues, and where it goes on.
  function places.page(ctx, place, cursor)
    local page, names, dues = call('ZSCAN', place, cursor, 'COUNT', ctx.page), {}, {}
    for i = 1, #page[2], 2 do
      names[#names + 1] = page[2][i]
      dues[#dues + 1] = page[2][i + 1] + 0
    end
    return names, dues, page[1]
  end

  -- forget_rested: drop buckets at rest whose due is over: nothing of them stays. Replies whether more could be dropped.
  -- reads, writes  rest      cost  3 calls and O(REST_MOST), ten times a second; else none
  function places.forget_rested(ctx)
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

  local ADOPTED_MOST = 1000 -- buckets that one call adopts

  -- adopt_held: versions before 20 of this library kept who is held in <prefix>:held:<route>, by due. They go on the schedule, to be held again in
  -- turn. Replies whether there are more.
  -- reads, writes  those sets, the schedule      cost  1 call a held route where there is none
  function places.adopt_held(ctx)
    for _, name in ipairs(route.names_of(ctx.held)) do
      local old, add, gone = ctx.k.held .. name, {}, {}
      local found = pcall_redis('ZRANGE', old, '0', ADOPTED_MOST - 1, 'WITHSCORES')
      if found.err then
        context.note(ctx, 'wrong-type', old)
      elseif found[1] then
        for i = 1, #found, 2 do
          add[i], add[i + 1] = digits(max(found[i + 1] + 0, ctx.now)), found[i]
          gone[#gone + 1] = found[i]
        end
        call('ZADD', ctx.k.schedule, 'NX', unpack(add))
        call('ZREM', old, unpack(gone))
        return true
      end
    end
    return false
  end
end
