-- needs: base, base.names, context, pace.rate, policy.chain, policy.record, queue.delayed, queue.envelope,
--   queue.gate, queue.ids, queue.push, queue.rejected, queue.retries, state, state.waiting, tree.budget,
--   tree.turn_at
-- Submit: push a job with options; find and cancel one submitted job by its id.

local submit = {}
do
  local refuse, integer, whole, digits = base.refuse, base.integer, base.whole, base.digits

  local LONGEST_MS = 366 * 86400000 -- the longest delay, and deadline
  local COST_MOST = 100000
  local HEADERS_MOST, HEADERS_BYTES = 8, 1024
  local SUBMITS_MOST = 100 -- jobs in a call
  local WORDS_MOST = 40 -- words that are read of a job: more cannot be right, and the first ones have an error
  local SIBLINGS_MOST = 100 -- children of a budget whose weights are read for an estimate

  -- ---- options ----

  -- add_header: add a header. Replies why it cannot be added, or nil.
  local function add_header(headers, name, value)
    if not name or not value then return 'HEADER needs a name and a value' end
    if name == '' or find(name, '[^a-z0-9-]') then
      return 'HEADER needs a name of a-z, 0-9 and -, not "' .. names.as_text(name, 50) .. '"'
    end
    if find(value, '[^ -~]') then return 'HEADER ' .. name .. ' needs a value of plain characters, space to ~' end
    local bytes = #name + #value
    for i = 1, #headers, 2 do
      if headers[i] == name then return 'HEADER ' .. name .. ' is given twice' end
      bytes = bytes + #headers[i] + #headers[i + 1]
    end
    if #headers == 2 * HEADERS_MOST then return 'at most ' .. HEADERS_MOST .. ' of HEADER' end
    if bytes > HEADERS_BYTES then return 'all of HEADER together have at most ' .. HEADERS_BYTES .. ' bytes' end
    headers[#headers + 1], headers[#headers + 2] = name, value
  end

  -- How each option is read: its value is put into `o`; replies why it cannot be, or nil.
  local OPTIONS = {
    REPLACE = function(o) o.replaces = true end, -- the only one without a value
    ID = function(o, text)
      if not text or not envelope.is_id(text) then return 'ID needs 1 to 200 bytes of ! to ~' end
      o.id = text
    end,
    DELAY = function(o, text)
      o.delay_ms = whole(text, 0, LONGEST_MS)
      if not o.delay_ms then return 'DELAY needs whole milliseconds, 0 to ' .. digits(LONGEST_MS) end
      if o.at_ms then return 'DELAY and AT exclude each other' end
    end,
    AT = function(o, text)
      o.at_ms = integer(text)
      if not o.at_ms then return 'AT needs whole milliseconds since 1970' end
      if o.at_ms < base.TIME_FROM_MS then
        return 'AT needs milliseconds since 1970, and ' .. text .. ' of them are long ago: are these seconds?'
      end
      if o.delay_ms then return 'AT and DELAY exclude each other' end
    end,
    TTL = function(o, text)
      o.ttl_ms = whole(text, 1, LONGEST_MS)
      if not o.ttl_ms then return 'TTL needs whole milliseconds, 1 to ' .. digits(LONGEST_MS) end
    end,
    COST = function(o, text)
      o.cost = whole(text, 1, COST_MOST)
      if not o.cost then return 'COST needs a whole number, 1 to ' .. COST_MOST end
    end,
  }

  -- options_of: the options after the job, or nil and the error.
  local function options_of(args)
    local o, i, given = { headers = {} }, 2, {}
    while i <= #args do
      local option, why = upper(args[i]), nil
      if option == 'HEADER' then
        why = add_header(o.headers, args[i + 1], args[i + 2])
        i = i + 1
      elseif not OPTIONS[option] then
        why = '"' .. names.as_text(args[i], 50) .. '" is none of ID, DELAY, AT, TTL, COST, HEADER and REPLACE'
      elseif given[option] then
        why = option .. ' is given twice'
      else
        given[option] = true
        why = OPTIONS[option](o, args[i + 1])
      end
      if why then return nil, refuse('BADARG', why) end
      i = i + (option == 'REPLACE' and 1 or 2)
    end
    if o.replaces and not o.id then return nil, refuse('BADARG', 'REPLACE needs ID: which job is to be replaced') end
    o.cost = o.cost or 1
    return o
  end

  -- time_of: when a delayed job may leave; nil for a job without delay; or nil and the error.
  local function time_of(ctx, o)
    local at = o.delay_ms and ctx.now + o.delay_ms * 1000 or o.at_ms and o.at_ms * 1000
    if not at or at <= ctx.now then return nil end
    if at > ctx.now + LONGEST_MS * 1000 then return nil, refuse('BADARG', 'AT is more than 366 days ahead') end
    return at
  end

  -- ---- verdicts ----

  -- leaves: the earliest time at which the n-th job of a bucket could leave, in ms from now, and the node that decides
  -- it.
  local function leaves(ctx, s, due, n)
    local p, eta, by = s.p, rate.eta_ms(s.p, due, ctx.now, n), s.bucket
    if p.parent then
      local above, id = budget.eta_ms(ctx, p.parent, n)
      if above > eta then eta, by = above, chain.budget_of(id) end
    end
    return eta, by
  end

  -- weights: the sum of the weights of a budget's waiting children, without this bucket. Of many children only the
  -- first are read, and the sum is extrapolated.
  local function weights(ctx, parent, name)
    local b, sum, n, seen = budget.get(ctx, parent), 0, 0, { [name] = true }
    for route_name in pairs(b.routes) do
      for _, one in ipairs(waiting.front(ctx, waiting.line(ctx, parent, route_name), SIBLINGS_MOST)) do
        local p = not seen[one.id] and n < SIBLINGS_MOST - 1 and record.policy_of(ctx.rec, one.id)
        if p then seen[one.id], sum, n = true, sum + p.weight, n + 1 end
      end
    end
    if n < SIBLINGS_MOST - 1 then return sum end
    return sum / n * (budget.waiting(ctx, b) - 1)
  end

  -- expected_ms: when the n-th job of a bucket is expected to leave, by the share of its bucket among those that wait
  -- for the same budget, and no earlier than its turns at its route, where buckets are held.
  local function expected_ms(ctx, s, n, eta)
    local p = s.p
    local up = p.parent and budget.get(ctx, p.parent).p
    if ctx.held ~= '' then -- its route may hold it: then it gets a turn in each round
      local turn_us, round_us = turn_at.route(ctx, s)
      eta = max(eta, ceil((turn_us + (n - 1) * round_us) / 1000))
    end
    if not up or not up.count then return eta end
    local others = weights(ctx, p.parent, s.bucket)
    return max(eta, ceil(n * up.period_us / up.count * (others + p.weight) / p.weight / 1000))
  end

  -- answer: the nine values of a verdict: those of drip_push, then the verdict, the id, when the job is expected to
  -- leave, and the node that decides it.
  local function answer(s, verdict, more)
    local eta = more.eta or -1
    return {
      more.accepted or 0, more.depth or s.len, s.p.capacity, more.retry or -1, eta, verdict, more.id or '',
      more.expected or eta,
      more.by or s.bucket,
    }
  end

  -- duplicate: a job with this id waits (`it`), or has left. Nothing changes.
  local function duplicate(ctx, s, o, it)
    context.count(ctx, 'duplicates', 1)
    local eta = it and max(0, ceil((it.eta_us - ctx.now) / 1000))
    return answer(s, 'duplicate', { accepted = 1, eta = eta, id = o.id })
  end

  -- refusal: why a job is not accepted: a verdict and its details; nil: it is accepted.
  --   at     when it may leave, nil: at once
  --   due    the due of its bucket, if it were accepted
  --   depth  of the jobs where it would wait
  local function refusal(ctx, s, gates, o, at, due, depth)
    local p, own = s.p, at and depth or nil
    if depth >= p.capacity and (at or not p.drop_oldest) then
      local first = at and delayed.first_time(ctx, s.bucket) or huge -- a closed bucket is full though none waits
      local wait = push.wait_for_room(ctx, s, first < huge and max(first, due) or due)
      return 'full', { depth = own, retry = max(wait, (gate.slowest(gates))) }
    end
    if o.ttl_ms then
      local eta, by = leaves(ctx, s, at and max(at, due) or due, at and 1 or min(s.len + 1, p.capacity))
      local left = eta - (at and ceil((at - ctx.now) / 1000) or 0) - o.ttl_ms
      if left > 0 then return 'late', { depth = own, retry = push.honest(ctx, s, due, left), by = by } end
    end
    local wait, name = gate.slowest(gates)
    if name then return 'gated', { depth = own, retry = wait, by = name } end
  end

  -- turn_down: refuse a job. Plain pushes above the allowance are cut, as in every push.
  local function turn_down(ctx, s, verdict, more)
    push.count_refused(ctx, s, 1)
    if verdict ~= 'full' then context.count(ctx, verdict, 1) end
    push.enter(ctx, s)
    return answer(s, verdict, more)
  end

  -- stored: a job with its options as it is stored. It gets an id where it has none.
  local function stored(ctx, o, at, job)
    if not ctx.magic then
      ctx.magic = envelope.make_magic(ctx.id, ctx.now_text)
      call('HSET', ctx.k.policy, 'mark', ctx.magic)
    end
    o.is_given, o.id = o.id ~= nil, o.id or ctx.now_text .. '-' .. digits(ctx.calls)
    o.deadline_us = o.ttl_ms and (at or ctx.now) + o.ttl_ms * 1000 or nil
    return envelope.pack(ctx.magic, o, job)
  end

  -- queue_up: a job goes into the queue.
  local function queue_up(ctx, s, gates, o, job)
    push.put_in(ctx, s, gates, { stored(ctx, o, nil, job) }, 1)
    local due = push.reckoned(ctx, s)
    local eta, by = leaves(ctx, s, due, s.len)
    local expected = expected_ms(ctx, s, s.len, eta)
    ids.accept(ctx, s.bucket, o, 'q', ctx.now + eta * 1000, '-', s.len)
    push.enter(ctx, s)
    return answer(s, 'queued', { accepted = 1, eta = eta, expected = expected, id = o.id, by = by })
  end

  -- put_aside: a delayed job waits for its time.
  local function put_aside(ctx, s, gates, o, at, due, depth, job)
    gate.charge(gates, 1)
    local eta, by = leaves(ctx, s, max(at, due), 1)
    delayed.add(ctx, s.bucket, at, o.accepted_us, stored(ctx, o, at, job))
    local earlier = retries.expect(ctx, s.bucket, at)
    ids.accept(ctx, s.bucket, o, 'd', ctx.now + eta * 1000, digits(at), s.len)
    context.count(ctx, 'delayed', 1)
    push.enter(ctx, s)
    if earlier and at < state.first_due(ctx) then context.wake(ctx.k) end
    return answer(s, 'delayed', { accepted = 1, depth = depth + 1, eta = eta, id = o.id, by = by })
  end

  -- move_delayed: another job, as it is stored, takes the place of a delayed one, `it`, and waits until `at`. Replies
  -- false where it is not found, because large jobs wait for the same moment.
  local function move_delayed(ctx, s, o, it, at, due, text)
    local name, before = s.bucket, retries.first_at(ctx)
    if not delayed.replace(ctx, name, it.place + 0, it.since_us, at, text) then return false end
    retries.index(ctx, name, true)
    local eta, by = leaves(ctx, s, max(at, due), 1)
    it.eta_us, it.place = ctx.now + eta * 1000, digits(at)
    ids.replace(ctx, name, o, it)
    if at < min(before, state.first_due(ctx)) then context.wake(ctx.k) end
    return true, by
  end

  -- replace: another job takes the place of one that waits, `it`. Nothing is charged or counted anew.
  local function replace(ctx, s, o, it, at, due, job)
    local is_moved, by = false, nil
    if it.state == 'd' then
      o.accepted_us = it.since_us
      is_moved, by = move_delayed(ctx, s, o, it, at or ctx.now, due, stored(ctx, o, at, job))
    end
    if not is_moved then
      local text = stored(ctx, o, nil, job)
      ids.replace(ctx, s.bucket, o, it, text)
    end
    local eta = max(0, ceil((it.eta_us - ctx.now) / 1000))
    context.count(ctx, 'replaced', 1)
    push.enter(ctx, s)
    return answer(s, 'replaced', { accepted = 1, eta = eta, id = o.id, by = by })
  end

  -- drip_submit: put one job with options into a bucket. It never dispatches.
  -- keys   <prefix>:queue:<bucket>
  -- args   job [ID id [REPLACE]] [DELAY ms | AT unix_ms] [TTL ms] [COST n] [HEADER name value] ...
  --        REPLACE: where a job with this id waits, this one takes its place, and a delayed one waits for the new time
  -- reply  { accepted, depth, capacity, retry_after_ms or -1, eta_ms or -1, verdict, id ('' when refused), expected_ms
  --        or -1, by }
  --        verdict: queued, delayed, replaced, duplicate (a job with this id waits, is with a worker or has left:
  --        nothing was changed), full, late, gated; by: the bucket, budget or gate that decides
  -- errors BADBUCKET BADARG TOOLARGE WRONGTYPE OOM; nothing is changed
  -- cost   O(log n)
  function submit.submit(redis_keys, args, now_us)
    if #redis_keys == 1 and #args == 0 then return refuse('BADARG', 'no job given') end
    local job, o, err = args[1], options_of(args)
    if err then return err end
    local ctx, s
    ctx, s, err = push.read(redis_keys, now_us)
    if err then return err end
    local p, name, limit = s.p, s.bucket, ctx.limits.max_job_bytes
    if p.refused then return refuse('BADBUCKET', name .. ' has no budget to leave through: ' .. p.refused) end
    if o.cost > p.cost_limit then
      return refuse('BADARG', 'COST ' .. o.cost .. ' is more than a job of ' .. name .. ' may cost: cost_max is '
        .. digits(p.cost_limit))
    end
    if #job > limit then
      return refuse('TOOLARGE', 'the job has ' .. #job .. ' bytes, limits.max_job_bytes is ' .. limit)
    end
    local gates, at
    gates, err = gate.read(ctx, s)
    if err then return err end
    at, err = time_of(ctx, o)
    err = err or push.can_be_cut(ctx, s, 1) or ids.wrong_type(ctx, name) or delayed.wrong_type(ctx, name)
    if err then return err end
    o.ttl_ms = o.ttl_ms or p.ttl_us and p.ttl_us / 1000
    local it, due = nil, push.reckoned(ctx, s, push.begun(ctx, name, s.due, s.len))
    o.accepted_us = ctx.now
    if o.id then
      it, o.accepted_us = ids.waiting(ctx, s, o.id)
      local is_taken = it or ids.is_remembered(ctx, name, p, o.id)
      if is_taken and not (it and o.replaces) then return duplicate(ctx, s, o, it) end
    end
    local depth = at and delayed.count(ctx, name) or s.len
    local verdict, more = refusal(ctx, s, gates, o, at, due, depth)
    -- checks end here
    rejected.trim_to_capacity(ctx, s)
    if it then return replace(ctx, s, o, it, at, due, job) end
    if verdict then return turn_down(ctx, s, verdict, more) end
    context.count(ctx, 'pushed', 1)
    if at then return put_aside(ctx, s, gates, o, at, due, depth, job) end
    return queue_up(ctx, s, gates, o, job)
  end

  -- drip__post: put one job into a bucket. Where the bucket has a `ttl` the job is submitted, else pushed.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us, job
  -- reply  as drip_submit, or as drip_push
  -- errors as those
  -- cost   that of a push, or of a push and a submit
  function submit.post(redis_keys, args)
    local job = { args[2] }
    local replied = push.push(redis_keys, job, args[1], true)
    if replied then return replied end
    return submit.submit(redis_keys, job, args[1])
  end

  -- drip_submit_all: submit several jobs to a bucket, one after the other, each with its own verdict. `dripd push`
  -- calls it.
  -- keys   <prefix>:queue:<bucket>
  -- args   "1": stop at the first job that is full or gated | "0"; then for each job its number of words, the job and
  --        its options as drip_submit takes them; at most 100 jobs
  -- reply  { what drip_submit replies, ... } as far as it came; the last one may be { an error, as a text }: a real
  --        error would replace the whole reply
  -- errors BADARG TOOMANY; nothing is changed
  -- cost   O(jobs log n)
  function submit.all(redis_keys, args, now_us)
    local stops, calls, i = args[1] == '1', {}, 2
    while i <= #args do
      local n = integer(args[i])
      if not n or n < 1 or i + n > #args then
        return refuse('BADARG', 'of each job its number of words is needed, and so many words')
      end
      if #calls == SUBMITS_MOST then
        return refuse('TOOMANY', 'at most ' .. SUBMITS_MOST .. ' jobs a call; split the push')
      end
      calls[#calls + 1] = { unpack(args, i + 1, i + min(n, WORDS_MOST)) }
      i = i + n + 1
    end
    local replies = {}
    for at, words in ipairs(calls) do
      local reply = submit.submit(redis_keys, words, now_us)
      replies[at] = reply.err and { reply.err } or reply
      if reply.err or stops and (reply[6] == 'full' or reply[6] == 'gated') then break end
    end
    return replies
  end

  -- ---- one job, by its id ----

  -- read_one: the context, the bucket and no error for a call about one id; or nil and the error in the third reply.
  local function read_one(redis_keys, args, now_us)
    local id = args[1]
    if #args ~= 1 or not envelope.is_id(id) then
      return nil, nil, refuse('BADARG', 'one id is needed: 1 to 200 bytes of ! to ~')
    end
    local ctx, s, err = push.read(redis_keys, now_us)
    if not err then err = ids.wrong_type(ctx, s.bucket) end
    return ctx, s, err
  end

  -- drip_cancel: cancel a waiting job: it is dropped at its turn, without taking a slot. Until then it takes up room.
  -- keys   <prefix>:queue:<bucket>
  -- args   id
  -- reply  1 it is cancelled and will not leave; 2 it has left already; 0 it is not known
  -- errors BADBUCKET BADARG WRONGTYPE; nothing is changed
  -- cost   O(1)
  function submit.cancel(redis_keys, args, now_us)
    local ctx, s, err = read_one(redis_keys, args, now_us)
    if err then return err end
    local id = args[1]
    local it = ids.find(ctx, s.bucket, id)
    if it and ids.is_cancelled(it) then return 1 end -- not for the first time
    it = ids.waiting(ctx, s, id)
    if it then
      ids.cancel(ctx, s.bucket, s.p, id, it)
      return 1
    end
    return ids.is_remembered(ctx, s.bucket, s.p, id) and 2 or 0
  end

  local STATES = { q = 'queued', d = 'delayed', r = 'retrying' }

  -- drip_find: where a submitted job is.
  -- keys   <prefix>:queue:<bucket>
  -- args   id
  -- reply  { queued, delayed, retrying, left (with a worker, done or dead) or unknown; eta_ms: the estimate at the
  --        accept less the time since, or until its back-off ends; -1: it waits no more; attempt: the number of the
  --        next one, 0: not known }
  -- errors BADBUCKET BADARG WRONGTYPE
  -- cost   O(1)
  function submit.find(redis_keys, args, now_us)
    local ctx, s, err = read_one(redis_keys, args, now_us)
    if err then return err end
    local it = ids.waiting(ctx, s, args[1])
    if it then return { STATES[it.state], max(0, ceil((it.eta_us - ctx.now) / 1000)), it.attempt } end
    return { ids.is_remembered(ctx, s.bucket, s.p, args[1]) and 'left' or 'unknown', -1, 0 }
  end
end
