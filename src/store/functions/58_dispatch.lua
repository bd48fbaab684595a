-- Dispatch: one bucket's turn. Retries first, then the queue, as many as the rate, the route and the call allow.
-- This is the path that every job takes: what is not needed for each of them is kept out of it. The plain bucket has a shorter
-- way of its own (`plain`), which does what `turn` would do.

local dispatch = {}
do
  local digits, after, policy_of, where = base.digits, rate.after, record.policy_of, bucket.where
  local room, above, asks, asks_open, pays, pays_open = route.room, budget.above, toll.asks, toll.asks_open, toll.pays, toll.pays_open
  local left, refused, may_go, find_quarter = leave.left, leave.refused, leave.may_go, leave.find_quarter
  local watched_in, watch_note, drips_of, drip = watch.of, watch.note, watch.drips_of, watch.drip

  -- The places of the jobs that leave next, as LINDEX takes them: '-1', '-2', ...
  local from_right = {}
  at_first_call[#at_first_call + 1] = function()
    for i = 1, 1000 do from_right[i] = digits(-i) end
  end

  -- The next job of a bucket that turned out to be too large for the plain way: it is not read twice.
  local head_of, head

  -- from_retries: let out jobs whose back-off has ended, a rate slot each. Replies what is left of the quota: nothing, where there may be more of
  -- them, for nothing overtakes them.
  local function from_retries(ctx, s, quota)
    local drips = drips_of(ctx.memory)
    while true do
      local r = may_go(ctx, s, quota)
      local job, looked_at
      while r do
        job, looked_at = retries.next_one(ctx, s)
        if not looked_at then break end
        quota = quota - looked_at
        r = may_go(ctx, s, quota)
      end
      if not job then break end
      local o = job.options
      local cost = o.cost > 1 and o.cost or nil
      if cost and not leave.has_room(ctx, s, cost) then break end
      local entry = {
        'bucket', s.bucket, 'job', job.body, 'attempt', job.attempt, 'due_us', s.due_text or digits(s.met or s.due), 'at_us',
        ctx.now_text, 'lease_ms', s.p.lease, 'id', o.id,
      }
      if job.kept ~= '0' then entry[15], entry[16] = 'kept', job.kept end
      if not element.is_bare(o) then element.add_fields(entry, o) end
      local added = r.forward and forward.send(r, job.body) or pcall_redis('XADD', r.stream, '*', unpack(entry))
      if added.err then -- a text has no such field
        refused(ctx, r, added.err)
        break
      end
      if s.p.limited then slots.take(ctx, s.p.route, added, toll.limited(ctx, s.bucket, s.p)) end
      if drips then drip(drips, s.bucket, s.due_text or digits(s.met or s.due), ctx.now_text) end
      left(ctx, s, r, 0, s.len > 0 or leave.others_wait(ctx, s, 1), cost)
      retries.remove(ctx, s, job)
      quota = quota - 1
    end
    return quota
  end

  -- from_queue: let out jobs from the right end of the queue. A job is taken from its queue only after it is in a stream:
  -- whatever stops or raises in between, none is lost, and one that may not leave is not touched. Jobs are read one by one,
  -- for nothing tells how large the next one is. Replies what is left of the quota.
  local function from_queue(ctx, s, quota)
    local queue, name, limit, out, len = s.queue, s.bucket, ctx.limits.max_job_bytes, 0, s.len
    local now_text, lease, large, drips, mark = ctx.now_text, s.p.lease, false, drips_of(ctx.memory), ctx.mark
    while out < len do
      local r = may_go(ctx, s, quota)
      if not r then break end
      local job = out == 0 and head_of == name and head or call('LINDEX', queue, from_right[out + 1])
      head_of, head = nil, nil
      local bytes, o = #job, mark and element.read(mark, job)
      if o then
        if not leave.submitted(ctx, s, r, o, bytes, out + 1 < len or leave.others_wait(ctx, s, 0)) then break end
      elseif bytes <= limit then
        local added = r.forward and forward.send(r, job) or pcall_redis('XADD', r.stream, '*', 'bucket', name, 'job', job, 'attempt', '1',
          'due_us', s.due_text or digits(s.met or s.due), 'at_us', now_text, 'lease_ms', lease)
        if added.err then
          refused(ctx, r, added.err)
          break
        end
        if s.p.limited then slots.take(ctx, s.p.route, added, toll.limited(ctx, name, s.p)) end
        if drips then drip(drips, name, s.due_text or digits(s.met or s.due), now_text) end
        left(ctx, s, r, bytes, out + 1 < len or leave.others_wait(ctx, s, 0))
      elseif not rejected.turn_away(ctx, s, job, 'too_large') then
        s.stuck = true
        break
      end
      large = bytes > 4096
      out, quota = out + 1, quota - 1
    end
    -- RPOP is a little less work, but replies the job once more.
    if out == 1 and not large then call('RPOP', queue) elseif out > 0 then call('LTRIM', queue, '0', -(out + 1)) end
    s.len = len - out
    s.level = s.len > s.p.capacity and s.len or nil
    return quota
  end

  -- one_delayed: the next delayed job of a bucket leaves, or is gone without a slot. Replies whether.
  local function one_delayed(ctx, s, text, job, more)
    local r = may_go(ctx, s, 1)
    if not r or not leave.submitted(ctx, s, r, element.read(sub(job, 1, element.MARK_BYTES), job), #job, more) then return false end
    delayed.remove(ctx, s.bucket, text)
    return true
  end

  -- by_turns: let out delayed jobs whose time has come, and jobs of the queue, one and one. Replies what is left of the quota.
  local function by_turns(ctx, s, quota)
    local name = s.bucket
    local was_queue = delayed.is_queue_next(ctx, name)
    local is_queue = was_queue
    while quota > 0 do
      local text, job = delayed.next_one(ctx, name)
      if not text then
        is_queue = false
        if s.len > 0 then quota = from_queue(ctx, s, quota) end
        break
      end
      local takes_queue, before = is_queue and s.len > 0, quota
      if takes_queue then
        quota = quota - 1 + from_queue(ctx, s, 1)
      elseif one_delayed(ctx, s, text, job, s.len > 0 or leave.others_wait(ctx, s, 1)) then
        quota = quota - 1
      end
      if quota == before then break end
      is_queue = not takes_queue
    end
    delayed.note_next(ctx, name, was_queue, is_queue and delayed.next_one(ctx, name) ~= nil)
    return quota
  end

  -- place_after: where a bucket waits after its turn. One that is due, and has more to do than its turn let it, waits for its share,
  -- or for its route.
  local function place_after(ctx, s)
    local is_due = not s.p.paused and not s.p.refused and s.due <= ctx.now and (s.len > 0 or s.retry_ready)
    if not is_due or s.p.concurrency and slots.is_full(ctx, s.bucket, s.p) then return bucket.place(ctx, s) end
    local parent = s.p.parent
    if parent and not s.picked and budget.blocked(ctx, parent) then return budget.come(ctx, s) end
    if room(ctx, s.p.route).left <= 0 then return bucket.held_place(ctx, s) end
    if s.picked and parent then return budget.come(ctx, s) end
    return bucket.place(ctx, s)
  end

  -- retry_first: whether a bucket whose jobs finish in their order has a failed one that could leave: the queue waits for it.
  local function retry_first(ctx, s)
    return s.p.ordered and retries.one_has_ended(ctx, s.bucket)
  end

  -- turn: what becomes of a bucket that is due. Replies what is left of its quota.
  -- reads, writes  its queue and retries, its ready stream, what `settle` and `commit` write      cost  O(quota)
  function dispatch.turn(ctx, s, quota, announced)
    local rest, dispatched_before = quota, ctx.dispatched
    if rejected.settle(ctx, s) then
      if s.p.paused or s.p.refused then
        s.retry_ready = announced
      else
        if announced then rest = from_retries(ctx, s, rest) end
        if not retry_first(ctx, s) then
          if announced and ctx.mark then
            rest = by_turns(ctx, s, rest)
          elseif s.len > 0 then
            rest = from_queue(ctx, s, rest)
          end
        end
        if announced then s.retry_ready = retries.index(ctx, s.bucket, true) end
        local counts = ctx.memory.watched and watched_in(ctx.memory, ctx.now)
        if counts then watch_note(counts, s.bucket, ctx.dispatched - dispatched_before) end
      end
      if s.level ~= s.stored_level then bucket.keep_level(ctx, s) end
    else
      s.stuck = true
    end
    if s.stuck then
      bucket.stick(ctx, s)
      return min(rest, quota - 1), false
    end
    local place = place_after(ctx, s)
    places.commit(ctx, s, place)
    if (place == ctx.k.schedule or place == ctx.k.full or s.p.parent) and s.len > 0 and ctx.id then
      memory.note(ctx.memory, s.bucket, s.len, ctx.now)
    else
      memory.drop(ctx.memory, s.bucket)
    end
    local goes_on = place ~= nil and place ~= ctx.k.paused and place ~= ctx.k.full and not s.p.parent
    return min(rest, quota - 1), s.due <= ctx.now and goes_on
  end

  -- The plain way. Most buckets that are due are within their capacity, have no retry or delayed job that may leave, and one job that may,
  -- and no change spreads. For them a turn is four calls and little else. What such turns share is kept in these names from `open` to
  -- `close`: a field of a table costs several times as much.
  local going, now, now_text, went_on, now_limit, all_keys, schedule_key, rest_key, queues, m, has_id, slowed
  local bytes, dispatched, latest, counted, late_from, late_to, rest_us, settled, notes_left
  local calls, lines, line, policy, source, is_stopped, capacity, catch_up_from, step, lease, to_route, r, stream, room_left, counted_from
  local due_before, text_before, watched, drips, mark, mark_byte
  local to_schedule, scheduled, to_rest, rested, from_schedule, left_schedule, from_rest, left_rest

  -- is_plain: whether the buckets of this call may go the plain way.
  function dispatch.is_plain(ctx)
    return not ctx.prev and not ctx.has_levels
  end

  -- resume: plain turns follow, at the beginning or after another one. pause: another one follows, and counts where all do.
  local function resume(ctx)
    going, bytes, latest, dispatched, counted, counted_from = true, ctx.bytes, ctx.latest_us, 0, 0, 0
    calls, lines = ctx.calls, m.budgets and m.budgets.lines or {} -- a line of this call is as good as what `above` replies
    policy, source, to_route = nil, nil, nil
    late_from, late_to, rest_us, settled, notes_left = m.late_from, m.late_to, m.rest_us, m.settled, memory.room(m)
  end

  local function count_late()
    if counted == 0 then return end
    local k = m.late_k
    m.lates[k], counted = (m.lates[k] or 0) + counted, 0
  end

  local function write_room()
    if to_route then r.left, r.out, counted_from = room_left, r.out + dispatched - counted_from, dispatched end
  end

  function dispatch.pause(ctx)
    if not going then return end
    going = false
    count_late()
    write_room()
    toll.count_tags(ctx)
    ctx.bytes, ctx.latest_us, ctx.dispatched = bytes, latest, ctx.dispatched + dispatched
    m.rest_us = rest_us
    memory.noted(m, notes_left)
  end

  -- open: plain turns may follow; close: no more of them. Where they left their buckets is written with all other moves.
  function dispatch.open(ctx)
    head_of, head = nil, nil
    now, now_text, now_limit, m, has_id = ctx.now, ctx.now_text, ctx.limits.max_job_bytes, ctx.memory, ctx.id ~= nil
    slowed, went_on = ctx.slowed, ctx.went_on -- of the buckets that this call was to expect
    watched, drips = m.watched and watched_in(m, now), drips_of(m)
    mark, mark_byte = ctx.mark, ctx.mark and byte(ctx.mark)
    all_keys, schedule_key, rest_key, queues = ctx.k, ctx.k.schedule, ctx.k.rest, ctx.k.queues
    due_before, going, to_schedule, scheduled, to_rest, rested = nil, false, {}, 0, {}, 0
    from_schedule, left_schedule, from_rest, left_rest = {}, 0, {}, 0
  end

  function dispatch.close(ctx)
    dispatch.pause(ctx)
    places.commit_all(ctx, to_schedule, to_rest, from_schedule, from_rest)
  end

  -- use: the policy of the buckets that come next; many in a row have the same. Those that are made of one, each for its own budget, differ
  -- in what is read first.
  local function use(ctx, p)
    local parent, made_of = p.parent, p.made_of
    policy, is_stopped, catch_up_from = p, p.is_stopped, now - p.catch_up_us
    if parent and not is_stopped then
      line = lines[parent]
      if not line or line.call ~= calls then line = above(ctx, parent) end
    else
      line = false
    end
    if made_of and made_of == source then return end
    source, capacity, lease, step = made_of, p.capacity, p.lease, p.part == 0 and p.step
    if p.route ~= to_route then
      write_room()
      to_route = p.route
      r = room(ctx, to_route)
      stream, room_left = r.stream, r.left
    end
  end

  -- makes_up: whether the lateness that a bucket below a line may make up for changes with each job.
  local function makes_up(line)
    local b = line[1]
    return b.brake and b.brake.paid
  end

  -- paid: a job of so many bytes has left for the due that its bucket met, and the latest one that it met in all. Replies the next
  -- due.
  local function paid(p, due, size, met)
    room_left, bytes, dispatched = room_left - 1, bytes + size, dispatched + 1
    local late = now - met
    if late > latest then latest = late end
    if late < late_from or late >= late_to then
      count_late()
      find_quarter(m, late)
      late_from, late_to = m.late_from, m.late_to
    end
    counted = counted + 1
    if due < catch_up_from then due = catch_up_from end
    if step then return due + step end
    return after(p, due)
  end

  -- put: an entry of a job in the stream. Replies whether it took it.
  local function put(ctx, name, job, due_text)
    local added = pcall_redis('XADD', stream, '*', 'bucket', name, 'job', job, 'attempt', '1', 'due_us', due_text,
      'at_us', now_text, 'lease_ms', lease)
    if drips and not added.err then drip(drips, name, due_text, now_text) end
    if not added.err then return true end -- a text has no such field
    refused(ctx, r, added.err)
    room_left = 0
    return false
  end

  -- is_marked: whether a job was submitted: then it goes no plain way.
  local function is_marked(job)
    return byte(job) == mark_byte and element.read(mark, job) ~= nil
  end

  -- put_more: jobs of the same bucket after its first, up to `most` together with that. Replies how many have left, and the next due.
  local function put_more(ctx, name, p, queue, len, due, most)
    local out = 1
    most = min(most, len)
    while out < most and due <= now and room_left > 0 and bytes < MIB do
      local job = call('LINDEX', queue, from_right[out + 1])
      local size = #job
      if size > now_limit or mark and is_marked(job) or not put(ctx, name, job, digits(due)) then break end
      out, due = out + 1, paid(p, due, size, due)
    end
    return out, due
  end

  -- left_place: a bucket stands there no more.
  local function left_place(name, place)
    if place == schedule_key then
      left_schedule = left_schedule + 1
      from_schedule[left_schedule] = name
    elseif place == rest_key then
      left_rest = left_rest + 1
      from_rest[left_rest] = name
    end
  end

  -- wait_at: a plain bucket that stood at `place` and has so many jobs left waits where `bucket.where` says.
  local function wait_at(name, left_over, place, due)
    local to = where(all_keys, left_over > 0, due, now)
    if due ~= due_before then due_before, text_before = due, digits(due) end
    if to == schedule_key then
      to_schedule[scheduled + 1], to_schedule[scheduled + 2] = text_before, name
      scheduled = scheduled + 2
      if has_id and notes_left > 0 then
        settled[name], notes_left = left_over, notes_left - 1
      end
    else
      if to then
        to_rest[rested + 1], to_rest[rested + 2] = text_before, name
        rested = rested + 2
        if due < rest_us then rest_us = due end
      end
      if settled[name] then settled[name] = nil end
    end
    if place ~= to then left_place(name, place) end
  end

  -- come: a plain bucket waits for its share from now on.
  local function come(ctx, name, p, len, place, due_text)
    local up = line[1]
    waiting.join(ctx, waiting.key(ctx, up.id), name, due_text + 0, budget.end_of(ctx, up, name, p))
    budget.has_work(ctx, up)
    left_place(name, place)
    if has_id and notes_left > 0 then settled[name], notes_left = len, notes_left - 1 end
  end

  -- plain: the turn of a bucket that is due and has `len` jobs, more than none, of which `most` may leave. Replies how many have
  -- left, and their bucket's next due where its turn is to be gone on with in general; 0 where it is no plain bucket and nothing
  -- was done. The third reply says whether it is due again at once.
  local function plain(ctx, name, p, queue, len, place, due, due_text, most)
    if not going then resume(ctx) end
    if p ~= policy then use(ctx, p) end
    if len > capacity or room_left <= 0 or bytes >= MIB or is_stopped then return 0 end
    if slowed and slowed[name] then return 0 end
    local met, is_open = due, false
    if line then
      met = asks_open(line, due)
      is_open = met and not watched
      if not met then
        if makes_up(line) then return 0 end
        met, due = asks(ctx, line, due)
      end
      if not met or met > now then
        come(ctx, name, p, len, place, due_text)
        return 1
      end
      if met ~= due then due_text = digits(met) end
    end
    local job = call('LINDEX', queue, '-1')
    local size = #job
    if size > now_limit or mark and is_marked(job) then
      head_of, head = name, job
      return 0
    end
    if not put(ctx, name, job, due_text) then return 0 end
    if is_open then pays_open(ctx, line, name, p) elseif line then pays(ctx, line, name, p) end
    local out = 1
    due = paid(p, due, size, met)
    if len > 1 and due <= now and not line then
      out, due = put_more(ctx, name, p, queue, len, due, most)
    end
    -- RPOP is a little less work for a small job, but replies it once more.
    if out == 1 and size <= 4096 then call('RPOP', queue) else call('LTRIM', queue, '0', -(out + 1)) end
    if watched then watch_note(watched, name, out) end
    local is_due = len > out and due <= now
    if is_due and out < most then return out, due end
    wait_at(name, len - out, place, due)
    return out, nil, is_due
  end
  dispatch.plain = plain

  -- picked: the turn of a bucket that a budget picked, `one` of its waiting set `key`, where it is plain: one job leaves. Replies
  -- whether it was.
  function dispatch.picked(ctx, key, one)
    if one.due > ctx.now then return false end -- the clock stepped back
    if not going then resume(ctx) end
    local name, p = one.id, policy_of(ctx.rec, one.id)
    if p ~= policy then use(ctx, p) end
    if (ctx.has_slow or ctx.has_paid) and brake.is_slowed(ctx, name, p) then return false end
    local queue = queues .. name
    local len = pcall_redis('LLEN', queue)
    if type(len) ~= 'number' or len == 0 or len > capacity or room_left <= 0 or bytes >= MIB or is_stopped or not line then
      return false
    end
    local due = one.due < went_on and went_on or one.due
    local met = asks_open(line, due)
    local is_open = met and not watched
    if not met then
      if makes_up(line) then return false end
      met, due = asks(ctx, line, due)
    end
    if not met or met > now then return false end
    local job = call('LINDEX', queue, '-1')
    local size = #job
    if size > now_limit or mark and is_marked(job) or not put(ctx, name, job, digits(met)) then return false end
    if is_open then pays_open(ctx, line, name, p, one.ends) else pays(ctx, line, name, p, one.ends) end
    if watched then watch_note(watched, name, 1) end
    due = paid(p, due, size, met)
    if size <= 4096 then call('RPOP', queue) else call('LTRIM', queue, '0', '-2') end
    if len > 1 and due <= now then
      waiting.served(ctx, key, one, due, share.end_of(one.ends, line[1].now, p.weight, line[1].shares.largest)) -- that end is its tag now
      if has_id and notes_left > 0 then settled[name], notes_left = len - 1, notes_left - 1 end
    else
      waiting.served(ctx, key, one)
      wait_at(name, len - 1, nil, due)
    end
    return true
  end

  -- plain_turns: the turns of the due buckets of `work` (64_drain), from where it stands, as long as they are plain. Where the last
  -- one has more to do than the plain way can, the reply is its next due, and how many of its jobs have left.
  function dispatch.plain_turns(ctx, work)
    local names, dues, rec, policy_of_all, share = work.names, work.due, ctx.rec, ctx.rec.plain, work.share
    local i, quota, n, announced = work.at + 1, work.quota, #names, ctx.has_ended and work.announced
    while i <= n and quota > 0 do
      work.at = i -- whatever raises, raises at this one
      local name, due_text = names[i], dues[i + i]
      local queue = queues .. name
      local len = pcall_redis('LLEN', queue)
      if len == 0 or announced and announced[i] or len ~= 1 and type(len) ~= 'number' then break end
      local out, left_at, is_due = plain(ctx, name, policy_of_all or policy_of(rec, name), queue, len, schedule_key, due_text + 0,
        due_text, quota < share and quota or share)
      if out == 0 then break end
      quota, i = quota - out, i + 1
      if is_due then work.more = true end
      if left_at then
        work.at, work.quota = i - 1, quota
        return left_at, out
      end
    end
    work.at, work.quota = i - 1, quota
  end
end
