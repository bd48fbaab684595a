-- The event loop of `dripd simulate`, appended to the function library on its throw-away server: so it calls the
-- functions themselves, and no call crosses a socket. Producers push, a daemon drains when something is due, and
-- workers take jobs and finish them, each at its simulated time. Nothing here decides about a job: that is what is
-- simulated.
--
-- Times are whole microseconds on the simulated clock. What happens at the same time happens in this order: workers
-- finish, producers push, workers come, the daemon calls.

do
  local digits = base.digits
  local world -- what is simulated; one at a time

  -- A daemon calls so long after a push or a due: it hears of it, wakes up, and its call arrives. The median of `make
  -- bench` from a push to a waiting worker is 265 us. A call of a full batch keeps it busy for so long a job.
  local DAEMON_US, BUSY_US = 250, 9
  local STEPS = 20000 -- what happens in one call at most: the next one continues
  local READ_MOST = 100 -- jobs that are read at once

  -- chance: a number above 0 and below 1 for what happens to a job by chance at a try. It depends on nothing else, so
  -- that it is the same under another configuration.
  local function chance(job, try, what)
    local hash = redis.sha1hex(world.seed .. ' ' .. match(job, '%d+$') .. ' ' .. try .. ' ' .. what)
    return (tonumber(sub(hash, 1, 8), 16) + 0.5) / 4294967296
  end

  -- ---- what is going to finish: a binary heap, the earliest first ----

  local function put(heap, one)
    local at = #heap + 1
    while at > 1 do
      local above = floor(at / 2)
      if heap[above].at <= one.at then break end
      heap[at], at = heap[above], above
    end
    heap[at] = one
  end

  local function take(heap)
    local first, last, n = heap[1], heap[#heap], #heap - 1
    heap[n + 1] = nil
    local at = 1
    while 2 * at <= n do
      local below = 2 * at
      if below < n and heap[below + 1].at < heap[below].at then below = below + 1 end
      if heap[below].at >= last.at then break end
      heap[at], at = heap[below], below
    end
    if n > 0 then heap[at] = last end
    return first
  end

  -- ---- workers ----

  -- is_away: whether the workers of a group take no jobs now.
  local function is_away(group, now)
    for _, span in ipairs(group.away) do
      if now >= span[1] and now < span[2] then return true end
    end
    return false
  end

  -- service_us: how long a worker of a group holds a job.
  local function service_us(group, job, try)
    if not group.is_exponential then return group.service_us end
    return floor(-math.log(chance(job, try, 0)) * group.service_us) + 1
  end

  -- happened: add something to the reply, with its time.
  local function happened(what, how)
    base.append(world.events, what, world.now - world.start_us, how)
  end

  -- begin_job: a worker has taken a job.
  local function begin_job(route, group, now, id, job, try, is_first, is_late)
    happened(job, (is_first and 1 or 0) + (is_late and 2 or 0))
    group.free = group.free - 1
    local done_us = now + service_us(group, job, try)
    put(world.busy, { at = done_us, id = id, route = route, group = group, job = job, try = try })
  end

  -- read_stream, read_list: free workers of a group read. Replies whether there may be more.
  local function read_stream(route, group, now)
    local most = min(group.free, READ_MOST)
    local found = call('XREADGROUP', 'GROUP', 'workers', group.name, 'COUNT', most, 'STREAMS', route.key, '>')
    local entries = found and found[1] and found[1][2] or {}
    for _, entry in ipairs(entries) do
      local fields, job, try, is_first, is_late = entry[2], nil, 1, true, false
      for i = 1, #fields, 2 do
        local name, value = fields[i], fields[i + 1]
        if name == 'job' then
          job = value
        elseif name == 'attempt' and value ~= '1' or name == 'kept' then
          is_first, try = false, try * 31 + tonumber(value)
        elseif name == 'deadline_us' then
          is_late = now > tonumber(value)
        end
      end
      begin_job(route, group, now, entry[1], job, try, is_first, is_late)
    end
    return #entries == most
  end

  local function read_list(route, group, now)
    local job = call(route.pop, route.key)
    local deadline_us = job and world.deadlines[job]
    if deadline_us then world.deadlines[job] = nil end
    if job then begin_job(route, group, now, false, job, 1, true, deadline_us and now > deadline_us) end
    return job and group.free > 0
  end

  local function read(route, now)
    local read_one = route.pop and read_list or read_stream
    for _, group in ipairs(route.groups) do
      if group.free > 0 and not is_away(group, now) then
        while group.free > 0 and read_one(route, group, now) do end
        if group.free > 0 then -- there is nothing more
          route.may_have = false
          return
        end
      end
    end
  end

  -- finish_job: a worker has done a job, and says how it went.
  local function finish_job(now)
    local done = take(world.busy)
    local route, group = done.route, done.group
    group.free = group.free + 1
    local kind = done.id and world.has_kinds and world.kinds[tonumber(match(done.job, '^%d+%.(%d+)'))]
    if done.id then
      local args, now_text = { done.id }, digits(now)
      if kind and kind.throttle > 0 and chance(done.job, done.try, 1) < kind.throttle then
        base.append(args, 'THROTTLED')
        if kind.retry_after_ms then base.append(args, 'RETRY_AFTER', digits(kind.retry_after_ms)) end
        world.throttled = world.throttled + 1
        happened(done.job, 7)
        jobs.fail({ route.key }, args, now_text)
      elseif kind and kind.fail > 0 and chance(done.job, done.try, 2) < kind.fail then
        world.failed = world.failed + 1
        happened(done.job, 7)
        jobs.fail({ route.key }, args, now_text)
      else
        if kind and kind.is_corrected then base.append(args, 'COST', match(done.job, '^%d+%.%d+%.%d+%.(%d+)')) end
        jobs.ack({ route.key }, args, now_text)
      end
    end
    if route.may_have then read(route, now) end
  end

  -- ---- producers and the daemon ----

  local function call_daemon_by(at)
    world.daemon_at = min(world.daemon_at, max(at + DAEMON_US, world.free_at))
  end

  -- arrive: the i-th arrival of `args`, { at, bucket, how many words follow, is it submitted, words }. Its verdict goes
  -- into the reply. Replies where the next one begins.
  local function arrive(args, i, now)
    local queue, words, is_submitted = world.queues .. args[i + 1], tonumber(args[i + 2]), args[i + 3] == '1'
    local from, now_text = i + 4, digits(now)
    local door = is_submitted and submit.submit or push.push
    local reply = door({ queue }, { unpack(args, from, from + words - 1) }, now_text)
    local out = world.verdicts
    if reply.err then
      out[#out + 1] = reply.err
    else
      out[#out + 1] = is_submitted and reply[6] or reply[1]
      -- Where jobs were there before, the daemon knows the due. A bucket that drops its oldest has fewer than came.
      local is_news = reply[1] > 0 and (is_submitted or reply[2] <= reply[1])
      if is_news and world.daemon_at > max(now + DAEMON_US, world.free_at) then
        local first = base.first_score(world.schedule)
        if first < huge then call_daemon_by(max(first, now)) end
      end
    end
    return from + words
  end

  -- call_daemon: the daemon drains; workers that wait have what it let out.
  local function call_daemon(now)
    local reply = drain.drain({ world.schedule }, { digits(now), '0', '' })
    local wait, dispatched = reply[1], reply[2]
    for i = 1, #reply[7], 4 do
      if reply[7][i] == 'raised' then error(reply[7][i + 2]) end
    end
    world.free_at = now + max(1, BUSY_US * dispatched)
    world.daemon_at = huge
    if wait == 0 then world.daemon_at = world.free_at elseif wait > 0 then call_daemon_by(now + wait) end
    if dispatched == 0 then return end
    for _, route in ipairs(world.routes) do
      route.may_have = true
      read(route, now)
    end
  end

  -- next_shift: when workers that are away come back next.
  local function next_shift(now)
    local at = huge
    for _, route in ipairs(world.routes) do
      for _, group in ipairs(route.groups) do
        for _, span in ipairs(group.away) do
          if span[2] > now and span[2] < at then at = span[2] end
        end
      end
    end
    return at
  end

  local function come_back(now)
    for _, route in ipairs(world.routes) do
      if route.may_have then read(route, now) end
    end
    world.shift_at = next_shift(now)
  end

  -- note_drop, note_dead: what the functions do with jobs that are dropped at their turn, or pushed out by newer ones,
  -- and with those that are given up, instead of keeping them in streams: memory does not grow with the time.
  local function note_drop(_, name, reason, field, value)
    happened((field == 'count' and value or '1') .. ' ' .. name, reason == 'expired' and 4 or 5)
    return true
  end

  local function note_dead(_, _, job) happened(job, 6) end

  -- submitted: as the functions do; the deadline of a job that goes into a list is kept here, because the list has no
  -- place for it.
  local let_out = leave.submitted
  local function submitted(ctx, s, r, o, ...)
    local is_gone = let_out(ctx, s, r, o, ...)
    if is_gone and r.entry and o.deadline_us and o.deadline_us >= ctx.now then world.deadlines[o.body] = o.deadline_us end
    return is_gone
  end

  -- drip__begin_simulation: a new world, on an empty server with a policy record.
  -- keys   <prefix>:policy
  -- args   now_us, as JSON: { seed, kinds: [ { fail, throttle, retry_after_ms, is_corrected } ], routes: [ { name, groups:
  --        [ { name, free, service_us, is_exponential, away: [ [from_us, to_us] ] } ] } ] }; times of `away` since the beginning
  -- reply  OK
  local function begin(redis_keys, args)
    local now, given = base.clock(args[1]), cjson.decode(args[2])
    local ctx = context.open(keys.space_before(redis_keys[1], 'policy'), args[1])
    world = {
      ctx = ctx, start_us = now, seed = given.seed, kinds = given.kinds, routes = given.routes, busy = {},
      deadlines = {}, queues = ctx.k.queues,
      schedule = ctx.k.schedule, daemon_at = huge, free_at = now,
      has_kinds = false, failed = 0, throttled = 0,
    }
    for _, kind in ipairs(world.kinds) do
      world.has_kinds = world.has_kinds or kind.is_corrected or kind.fail > 0 or kind.throttle > 0
    end
    for _, it in ipairs(world.routes) do
      local f = forward.of(ctx.rec, it.name)
      it.key, it.pop = f and f.to or keys.ready(ctx.space, it.name), f and (f.push == 'LPUSH' and 'RPOP' or 'LPOP')
      it.may_have = false
      for _, group in ipairs(it.groups) do
        for _, span in ipairs(group.away) do span[1], span[2] = now + span[1], now + span[2] end
      end
    end
    world.shift_at = next_shift(now)
    context.wake = function() call_daemon_by(world.now) end -- there is no socket that it could be heard on
    rejected.add, dead_entry.add, leave.submitted = note_drop, note_dead, submitted
    return redis.status_reply('OK')
  end

  -- drip__simulate: what happens until a time, or as much of it as one call may do.
  -- keys   <prefix>:policy
  -- args   now_us: until then; arrivals in their order: at_us, bucket, how many words follow, "1": submitted | "0":
  --        pushed, words
  -- reply  { the time that was reached, how many arguments were used,
  --          verdicts of the arrivals: how many were accepted, the verdict of a submit, or an error,
  --          what happened to accepted jobs, in order, flat: a worker took one: { job, when since the beginning, 1: for
  --          the first time, + 2: after its deadline }; some were dropped: { "<how many> <bucket>", when, 4: at their
  --          turn, their deadline over | 5: pushed out by newer ones }; one was given up: { job, when, 6 }; a try failed, and the job waits for
  --          another, or is given up at the same time: { job, when, 7 },
  --          how many times a job failed, and was throttled, in all }
  local function simulate(_, args)
    local till, i, steps = base.clock(args[1]), 2, 0
    world.verdicts, world.events = {}, {}
    local arrive_at = tonumber(args[i] or huge)
    while steps < STEPS do
      local finish_at = world.busy[1] and world.busy[1].at or huge
      local now = min(finish_at, arrive_at, world.shift_at, world.daemon_at)
      if now > till then
        world.now = till
        break
      end
      world.now, steps = now, steps + 1
      if finish_at == now then
        finish_job(now)
      elseif arrive_at == now then
        i = arrive(args, i, now)
        arrive_at = tonumber(args[i] or huge)
      elseif world.shift_at == now then
        come_back(now)
      else
        call_daemon(now)
      end
    end
    local out = world
    return { out.now, i - 1, out.verdicts, out.events, out.failed, out.throttled }
  end

  -- drip__still_waiting: the jobs that wait in a bucket at the end, or, of the policy key, those that lie ready for
  -- workers. Nothing can go on after it.
  -- keys   <prefix>:queue:<bucket>, or <prefix>:policy
  -- args   now_us
  -- reply  { jobs that no worker has taken yet, those of them whose deadline has passed }
  local function still_waiting(redis_keys, args)
    local ctx, fresh, overdue = context.open(world.ctx.space, args[1]), {}, {}
    local now, magic = ctx.now, ctx.magic
    local function add_fresh(job, deadline_us)
      deadline_us = deadline_us or world.deadlines[job]
      local list = deadline_us and deadline_us < now and overdue or fresh
      list[#list + 1] = job
    end
    local function add_stored(stored)
      for _, text in ipairs(stored) do
        local from = magic and find(text, magic, 1, true) -- the time of a delayed job stands before it
        local o = from and envelope.read(magic, sub(text, from))
        add_fresh(o and o.body or text, o and o.deadline_us)
      end
    end
    local _, name = keys.split_queue(redis_keys[1])
    if name then
      add_stored(call('LRANGE', redis_keys[1], 0, -1))
      add_stored(call('ZRANGE', ctx.k.delayed .. name, 0, -1))
      return { fresh, overdue }
    end
    for _, route in ipairs(world.routes) do
      if route.pop then add_stored(call('LRANGE', route.key, 0, -1)) end
      while not route.pop do
        local found = call('XREADGROUP', 'GROUP', 'workers', 'end', 'COUNT', 1000, 'STREAMS', route.key, '>')
        if not found or not found[1] then break end
        for _, entry in ipairs(found[1][2]) do
          local fields = base.by_name(entry[2])
          local is_fresh = fields.attempt == '1' and not fields.kept
          if is_fresh then add_fresh(fields.job, tonumber(fields.deadline_us)) end
        end
      end
    end
    return { fresh, overdue }
  end

  redis.register_function('drip__still_waiting', still_waiting)
  redis.register_function('drip__begin_simulation', begin)
  redis.register_function('drip__simulate', simulate)
end
