-- needs: base, context, context.settings, limits.constraint_store, limits.constraints, limits.slots, policy.chain,
--   state.line, state.transitions, state.waiting
-- States: the sorted sets that buckets and budgets are in. Waiting sets and their members are
-- written by state/waiting, the other sets by this file. Which states there are, and which may follow each, is in
-- state/transitions.
--
-- A state is kept as the key of the sorted set that a node is in. The score is its due:
--   nil                    idle: nothing of it is stored, or only jobs that no call has seen
--   k.rest                 cooling
--   k.schedule             scheduled
--   k.wait .. <budget>{<route>}  queued (state/waiting); of a budget without the route
--   k.wait .. {<route>}    held (state/line, state/waiting); likewise
--   k.full                 blocked
--   k.paused, k.refused    paused, refused
-- The member of a budget is its id (policy/chain), its score the due at which it may resume (tree/budget). The state of
-- a bucket is decided in `decide`, that of a budget in `budget.decide` (tree/states). `enter` notes it, and
-- `flush` writes it.

local state = {}
do
  local digits, seen, write, first_score = base.digits, base.seen, base.write, base.first_score

  local REST_MOST = 500 -- cooling nodes that one call forgets
  local FORGET_US = 100000 -- cooled nodes are forgotten so often: one at a time they would cost each wake three calls
  local AGAIN_US = 1000000 -- when the nodes of a set that cannot be written are tried again

  -- load: the states of some buckets, and their dues there. `found` are their dues on the schedule, where the caller
  -- has read them.
  -- reads   schedule, rest; paused where settings are stored; waiting where there are budgets or held buckets; full
  --         where a node may be blocked; refused where there are budgets or settings (`within` may be set)
  -- writes  nothing      cost  1 call for the schedule, and 1 for each of the others that is read
  function state.load(ctx, names, found)
    local k, states, dues = ctx.k, {}, {}
    if #names == 0 then return states, dues end
    found = found or call('ZMSCORE', k.schedule, unpack(names))
    local resting, paused, refused, shares, full
    for i = 1, #names do
      local due = found[i]
      if due then
        states[i], dues[i] = k.schedule, due + 0
      else
        if resting == nil then
          resting = ctx.memory.rest_us < huge and seen(pcall_redis('ZMSCORE', k.rest, unpack(names))) or false
        end
        if paused == nil then
          paused = ctx.rec.version and seen(pcall_redis('ZMSCORE', k.paused, unpack(names))) or false
          refused = (ctx.has_budgets or ctx.rec.version) and seen(pcall_redis('ZMSCORE', k.refused, unpack(names)))
            or false
          shares = (ctx.has_budgets or ctx.held ~= '') and waiting.states(ctx, names) or false
          full = ctx.may_be_full and seen(pcall_redis('ZMSCORE', k.full, unpack(names))) or false
        end
        due = resting and resting[i]
        if due then
          states[i], dues[i] = k.rest, due + 0
        elseif paused and paused[i] then
          states[i], dues[i] = k.paused, paused[i] + 0
        elseif shares and shares[i] then
          states[i], dues[i] = waiting.decode(ctx, shares[i])
        elseif full and full[i] then
          states[i], dues[i] = k.full, full[i] + 0
        elseif refused and refused[i] then
          states[i], dues[i] = k.refused, refused[i] + 0
        end
      end
    end
    return states, dues
  end

  local one_name, NOT_SCHEDULED = {}, { false } -- shared by all calls

  -- find: the state of one bucket, and its due there: `load` for one name.
  -- cost    1 call where it is scheduled, or where only its rate can keep it back and no node cools; else as `load`
  function state.find(ctx, name)
    local k, m = ctx.k, ctx.memory
    local due = call('ZSCORE', k.schedule, name)
    if due then return k.schedule, due + 0 end
    if ctx.is_simple and ctx.held == '' then
      due = m.rest_us < huge and seen(pcall_redis('ZSCORE', k.rest, name))
      if type(due) == 'string' then return k.rest, due + 0 end
      return nil, nil
    end
    one_name[1] = name
    local states, dues = state.load(ctx, one_name, NOT_SCHEDULED)
    return states[1], dues[1]
  end

  state.is_held = waiting.is_held

  local WORDS = {
    idle = 'none',
    cooling = 'rest',
    scheduled = 'due',
    queued = 'share',
    held = 'held',
    blocked = 'full',
    paused = 'paused',
    refused = 'refused',
  }

  -- of: the name of the state that is kept as this set (state/transitions).
  function state.of(ctx, key)
    local k = ctx.k
    if key == nil then return 'idle' end
    if key == k.schedule then return 'scheduled' end
    if key == k.rest then return 'cooling' end
    if key == k.paused then return 'paused' end
    if key == k.full then return 'blocked' end
    if key == k.refused then return 'refused' end
    return waiting.is_held(ctx, key) and 'held' or 'queued'
  end

  -- word: the name of that state in commands and replies.
  function state.word(ctx, key) return WORDS[state.of(ctx, key)] end

  -- at_rate: the state of a node that nothing but its rate stops.
  function state.at_rate(k, has_work, due, now)
    if has_work then return k.schedule end
    if due > now then return k.rest end
    return nil
  end

  -- stopped: the state of a node with work, a bucket or a budget, that something other than its rate stops; nil:
  -- nothing stops it. `is_back`: a failed job of the bucket may leave now.
  function state.stopped(ctx, id, p, is_back)
    if not p or p.refused then return ctx.k.refused end
    if p.paused then return ctx.k.paused end
    if p.concurrency and slots.is_full(ctx, id, p, is_back) then return ctx.k.full end
  end

  -- line_of: the line in which a bucket with this policy waits for its turn.
  function state.line_of(ctx, p)
    return p.parent and waiting.line(ctx, p.parent, p.route) or waiting.route_key(ctx, p.route)
  end

  -- decide: the state of a bucket. A bucket that is queued or held, and due, stays so until its turn, or until its
  -- policy names another budget or route.
  function state.decide(ctx, s)
    local has_work, p = s.len > 0 or s.retry_ready, s.p
    local stopped = has_work and state.stopped(ctx, s.bucket, p)
    if stopped then return stopped end
    if has_work and s.state and s.due <= ctx.now and s.state == state.line_of(ctx, p) then return s.state end
    return state.at_rate(ctx.k, has_work, s.due, ctx.now)
  end

  -- any: whether any node is in a state other than idle and held. A cooling one counts only while its due is in the
  -- future.
  function state.any(k, now)
    return call('EXISTS', k.schedule, k.paused, k.refused, k.full) > 0
      or call('ZCOUNT', k.rest, '(' .. digits(now), '+inf') > 0
  end

  local function list_of(lists, key)
    local list = lists[key]
    if not list then
      list = {}
      lists[key] = list
    end
    return list
  end

  -- move: a node leaves one sorted set, waiting sets aside, for another one with this due; `to` is nil: for none.
  -- `refused` says why its chain cannot be resolved.
  function state.move(ctx, id, from, to, due, refused)
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

  -- schedule: move a bucket that is idle, cooling or scheduled to the schedule. It is written at once.
  function state.schedule(ctx, name, from, due)
    local k = ctx.k
    if from == k.rest then pcall_redis('ZREM', k.rest, name) end
    call('ZADD', k.schedule, digits(due), name)
  end

  -- cooling: the list of nodes that cool from this call on: due and name of each, by turns.
  function state.cooling(ctx)
    if not ctx.moves then ctx.moves = { add = {}, remove = {} } end
    return list_of(ctx.moves.add, ctx.k.rest)
  end

  -- enter: an event takes a bucket into a state, or leaves it there with another due. `flush` writes it, with all
  -- others of the call.
  function state.enter(ctx, s, to, event)
    local from, due = s.state, s.due
    if to ~= from then transitions.check(s.bucket, s.left_state or state.of(ctx, from), event, state.of(ctx, to)) end
    if s.constraint and (not to or to == ctx.k.rest) then constraints.end_wait(ctx, s.constraint, due) end
    if to == from and due == s.stored_due and not s.rank then return end
    if waiting.is_set(ctx, from) then
      s.rank = s.rank or to == from and waiting.rank_of(ctx, from, s.bucket, s.stored_due)
      waiting.leave(ctx, from, s.bucket, s.stored_due)
      from = nil
    end
    if waiting.is_held(ctx, to) then
      line.join(ctx, s.p.route, s.bucket, due, 1, s.rank or nil)
      to = nil
    elseif waiting.is_set(ctx, to) then
      waiting.join(ctx, to, s.bucket, due, s.rank or nil)
      to = nil
    end
    s.rank = false
    state.move(ctx, s.bucket, from, to, due, s.p and s.p.refused)
  end

  -- enter_all: `enter` for many buckets at once (dispatch/fast_path): lists of dues and names to add, and lists of
  -- names to remove.
  function state.enter_all(ctx, to_schedule, to_rest, from_schedule, from_rest)
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

  -- add_to: write nodes to a set other than the schedule. Where its key holds something else they go on the schedule,
  -- because a job that has left must count. Then the reply is false.
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
    if ctx.changed_constraints then constraint_store.flush(ctx) end
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
    if moves.remove[ctx.k.paused] then settings.forget_if_none(ctx) end -- this may have been the last trace of settings
    return not all_written or add ~= nil and add[1] ~= nil or remove ~= nil and remove[1] ~= nil
  end

  -- flush: write the states that were entered. Replies whether the schedule changed. Where it raises, no remembered
  -- budget is believed any more.
  -- writes  all sets of states, budgets, constraints      cost  1 call a set, and one more where nodes leave it
  function state.flush(ctx)
    local has_changed, budgets = write_all(ctx), ctx.memory.budgets
    if budgets and budgets.call == ctx.calls then budgets.is_written = true end -- else it is of an earlier call
    return has_changed
  end

  -- first_due: the earliest due on the schedule, or `huge`.
  function state.first_due(ctx)
    return first_score(ctx.k.schedule)
  end

  -- due: the nodes that are due, earliest due first, at most `most`: a list of names and dues as texts. Replies nil and
  -- the earliest due where none is due. `first` is the earliest due, where it is known. A due from before the partition
  -- resumed counts as the moment when it resumed.
  -- cost    1 call where a node is due, 2 where none is; none where that is known
  function state.due(ctx, most, first)
    if first and first > ctx.now then return nil, first end
    local list = call('ZRANGE', ctx.k.schedule, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES')
    if not list[1] then return nil, first_score(ctx.k.schedule) end
    if list[2] + 0 < ctx.resumed_at then
      for i = 2, #list, 2 do
        if list[i] + 0 < ctx.resumed_at then list[i] = digits(ctx.resumed_at) end
      end
    end
    return list
  end

  -- page: one page of a set, for the sweep: names, dues, and the next cursor.
  function state.page(ctx, from, cursor)
    local page, names, dues = call('ZSCAN', from, cursor, 'COUNT', ctx.page), {}, {}
    for i = 1, #page[2], 2 do
      names[#names + 1] = page[2][i]
      dues[#dues + 1] = page[2][i + 1] + 0
    end
    return names, dues, page[1]
  end

  -- forget_cooled: drop cooling nodes whose due has passed: they are idle. Replies whether more could be dropped, and
  -- where jobs were ever submitted, which nodes were.
  -- reads, writes  rest      cost  3 or 4 calls and O(REST_MOST), ten times a second; else none
  function state.forget_cooled(ctx)
    local m, rest = ctx.memory, ctx.k.rest
    if ctx.now < m.rest_us or ctx.now >= m.forgot_us and ctx.now < m.forgot_us + FORGET_US then return false end
    -- A rollout, or the end of a timed setting, may move such a due into the future again.
    if ctx.old_rec or settings.first_end(ctx) <= ctx.now then return false end
    if m.rest_us == 0 then -- not known yet
      m.rest_us = first_score(rest)
      if ctx.now < m.rest_us then return false end
    end
    local n = call('ZCOUNT', rest, '-inf', ctx.now_text)
    local last, gone = digits(min(n, REST_MOST) - 1), nil
    if n > 0 then
      gone = ctx.magic and call('ZRANGE', rest, '0', last)
      call('ZREMRANGEBYRANK', rest, '0', last)
    end
    if n > REST_MOST then return true, gone end
    if n > 0 then m.forgot_us = ctx.now end
    m.rest_us = first_score(rest)
    return false, gone
  end

  local ADOPTED_MOST = 1000 -- nodes that one call looks at, about
  local NEVER = 2 ^ 40 -- no finish tag is as high, and every rank of those versions was

  -- adopt: versions of this library before 37 kept other ranks in the lines of routes, and one line for all routes of a
  -- budget. Move what waits there to the schedule, once: it finds its line at its turn. Replies whether there is more.
  -- reads, writes  waiting, the lines, the schedule, budgets      cost  a few calls for each node that waits, once
  function state.adopt(ctx)
    local m = ctx.memory
    if m.has_adopted == true then return false end
    local page = pcall_redis('HSCAN', ctx.k.waiting, m.has_adopted or '0', 'COUNT', ADOPTED_MOST)
    if page.err then page = { '0', {} } end
    for i = 1, #page[2], 2 do
      local id, text = page[2][i], page[2][i + 1]
      local key, due = waiting.decode(ctx, text)
      local member = sub(text, 1, 16) .. id
      local rank = not find(text, '}$') and NEVER
        or not find(text, '{}$') and tonumber(pcall_redis('ZSCORE', key, member) or 0) or 0
      if rank >= NEVER then
        pcall_redis('ZREM', key, member)
        call('HDEL', ctx.k.waiting, id)
        call('ZADD', ctx.k.schedule, digits(max(due, ctx.now)), id)
        local old = chain.budget_of(id) and call('HGET', ctx.k.budgets, id)
        if old then call('HSET', ctx.k.budgets, id, (gsub(old, '%d+ wait:.*$', digits(ctx.now) .. ' / schedule'))) end
      end
    end
    m.has_adopted = page[1] == '0' or page[1]
    return m.has_adopted ~= true
  end
end
