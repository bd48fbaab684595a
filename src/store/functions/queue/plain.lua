-- needs: base, base.memory, pace.brake, pace.rate, policy.record, queue.bucket, queue.dispatch, queue.envelope,
--   queue.leave, queue.places, route.room, tree.budget, tree.path, tree.share, tree.waiting, view.trace
-- Plain: the short way of most turns. Most buckets that are due are within their capacity, have no retry or delayed job that may leave, and one
-- job that may, and no change spreads. For them a turn is four calls and little else. Whatever finds no way here has its turn in general
-- (queue/dispatch).
--
-- What such turns share is kept in the names below from `open` to `close`: a field of a table costs several times as much.

local plain = {}
do
  local digits, after, policy_of, where, find_quarter = base.digits, rate.after, record.policy_of, bucket.where, leave.find_quarter
  local room_of, above, admits, admits_open, charge, charge_open = room.of, budget.above, path.admits, path.admits_open, path.charge, path.charge_open
  local watched_in, watch_note, drips_of, drip, refused = trace.of, trace.note, trace.dispatches_of, trace.dispatched, leave.refused
  local from_right, way_of = dispatch.from_right, budget.way_of

  local going, now, now_text, resumed_at, now_limit, all_keys, schedule_key, rest_key, queues, m, has_id, slowed
  local bytes, dispatched, latest, counted, late_from, late_to, rest_us, settled, notes_left
  local ways, line, policy, source, is_stopped, weight, capacity, catch_up_from, step, lease, to_route, r, stream, room_left, counted_from
  local due_before, text_before, watched, drips, magic, magic_byte
  local to_schedule, scheduled, to_rest, rested, from_schedule, left_schedule, from_rest, left_rest

  -- fits: whether the buckets of this call may go the plain way.
  function plain.fits(ctx)
    return not ctx.prev and not ctx.has_levels
  end

  -- resume: plain turns follow, at the beginning or after another one. pause: another one follows, and counts where all do.
  local function resume(ctx)
    going, bytes, latest, dispatched, counted, counted_from = true, ctx.bytes, ctx.latest_us, 0, 0, 0
    ways = budget.trusted(ctx)
    policy, source, to_route = nil, nil, nil
    late_from, late_to, rest_us, settled, notes_left = m.late_from, m.late_to, m.rest_us, m.settled, memory.room(m)
  end

  local function count_late()
    if counted == 0 then return end
    local k = m.late_k
    m.lates[k], counted = (m.lates[k] or 0) + counted, 0
  end

  local function write_room()
    if to_route then r.left, r.sent, counted_from = room_left, r.sent + dispatched - counted_from, dispatched end
  end

  function plain.pause(ctx)
    if not going then return end
    going = false
    count_late()
    write_room()
    path.count_tags(ctx)
    ctx.bytes, ctx.latest_us, ctx.dispatched = bytes, latest, ctx.dispatched + dispatched
    m.rest_us = rest_us
    memory.noted(m, notes_left)
  end

  -- open: plain turns may follow; close: no more of them. Where they left their buckets is written with all other moves.
  function plain.open(ctx)
    now, now_text, now_limit, m, has_id = ctx.now, ctx.now_text, ctx.limits.max_job_bytes, ctx.memory, ctx.id ~= nil
    slowed, resumed_at = ctx.slowed, ctx.resumed_at -- of the buckets that this call was to expect
    watched, drips = m.watched and watched_in(m, now), drips_of(m)
    magic, magic_byte = ctx.magic, ctx.magic and byte(ctx.magic)
    all_keys, schedule_key, rest_key, queues = ctx.k, ctx.k.schedule, ctx.k.rest, ctx.k.queues
    due_before, going, to_schedule, scheduled, to_rest, rested = nil, false, {}, 0, {}, 0
    from_schedule, left_schedule, from_rest, left_rest = {}, 0, {}, 0
  end

  function plain.close(ctx)
    plain.pause(ctx)
    places.commit_all(ctx, to_schedule, to_rest, from_schedule, from_rest)
  end

  -- use: the policy of the buckets that come next; many in a row have the same. Those that are made of one, each for its own budget, differ
  -- in what is read first.
  local function use(ctx, p)
    local made_of = p.made_of
    policy, is_stopped = p, p.is_stopped
    line = not is_stopped and (ways and ways[p] or p.parent and way_of(ctx, p, ways)) or false
    if made_of and made_of == source then return end
    source, weight, capacity, lease, step, catch_up_from = made_of, p.weight, p.capacity, p.lease, p.part == 0 and p.step, now - p.catch_up_us
    if p.route ~= to_route then
      write_room()
      to_route = p.route
      r = room_of(ctx, to_route)
      stream, room_left = r.stream, r.left
    end
  end

  -- admits_closed: what `admits` replies of a line that is not open all the way; false where the lateness that the bucket may make up for changes
  -- with each job.
  local function admits_closed(ctx, p, due)
    line = above(ctx, p.parent)
    local b = line[1]
    if b.brake and b.brake.paid then return false end
    return admits(ctx, line, due)
  end

  -- paid: a job of so many bytes has left for the due that its bucket met, and the latest one that it met in all. Replies the next
  -- due.
  local function paid(p, due, size, eligible_at)
    room_left, bytes, dispatched = room_left - 1, bytes + size, dispatched + 1
    local late = now - eligible_at
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

  -- has_magic: whether a job was submitted: then it goes no plain way.
  local function has_magic(job)
    return byte(job) == magic_byte and envelope.read(magic, job) ~= nil
  end

  -- put_more: jobs of the same bucket after its first, up to `most` together with that. Replies how many have left, and the next due.
  local function put_more(ctx, name, p, queue, len, due, most)
    local out = 1
    most = min(most, len)
    while out < most and due <= now and room_left > 0 and bytes < MIB do
      local job = call('LINDEX', queue, from_right[out + 1])
      local size = #job
      if size > now_limit or magic and has_magic(job) or not put(ctx, name, job, digits(due)) then break end
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
    local up = above(ctx, p.parent)[1]
    waiting.join(ctx, waiting.key(ctx, up.id), name, due_text + 0, budget.end_of(ctx, up, name, p))
    budget.has_work(ctx, up)
    left_place(name, place)
    if has_id and notes_left > 0 then settled[name], notes_left = len, notes_left - 1 end
  end

  -- turn: the turn of a bucket that is due and has `len` jobs, more than none, of which `most` may leave. Replies how many have
  -- left, and their bucket's next due where its turn is to be gone on with in general; 0 where it is no plain bucket and nothing
  -- was done. The third reply says whether it is due again at once.
  local function turn(ctx, name, p, queue, len, place, due, due_text, most)
    if not going then resume(ctx) end
    if p ~= policy then use(ctx, p) end
    if len > capacity or room_left <= 0 or bytes >= MIB or is_stopped then return 0 end
    if slowed and slowed[name] then return 0 end
    local eligible_at, goes_from, is_open = due, due, false
    if line then
      eligible_at = admits_open(line, due)
      is_open = eligible_at and not watched
      if not eligible_at then
        eligible_at, goes_from = admits_closed(ctx, p, due)
        if eligible_at == false then return 0 end
      end
      if not eligible_at or eligible_at > now then
        come(ctx, name, p, len, place, due_text)
        return 1
      end
      if eligible_at ~= due then due_text = digits(eligible_at) end
      due = goes_from
    end
    local job = call('LINDEX', queue, '-1')
    local size = #job
    if size > now_limit or magic and has_magic(job) then
      ctx.head_of, ctx.head = name, job
      return 0
    end
    if not put(ctx, name, job, due_text) then return 0 end
    if is_open then charge_open(ctx, line, name, weight) elseif line then charge(ctx, line, name, p) end
    local out = 1
    due = paid(p, due, size, eligible_at)
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
  plain.turn = turn

  -- picked: the turn of a bucket that a budget picked, `one` of its waiting set `key`, where it is plain: one job leaves. Replies
  -- whether it was.
  function plain.picked(ctx, key, one)
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
    local due = one.due < resumed_at and resumed_at or one.due
    local eligible_at = admits_open(line, due)
    local is_open = eligible_at and not watched
    if not eligible_at then eligible_at, due = admits_closed(ctx, p, due) end
    if not eligible_at or eligible_at > now then return false end
    local job = call('LINDEX', queue, '-1')
    local size = #job
    if size > now_limit or magic and has_magic(job) or not put(ctx, name, job, digits(eligible_at)) then return false end
    if is_open then charge_open(ctx, line, name, weight, one.ends) else charge(ctx, line, name, p, one.ends) end
    if watched then watch_note(watched, name, 1) end
    due = paid(p, due, size, eligible_at)
    if size <= 4096 then call('RPOP', queue) else call('LTRIM', queue, '0', '-2') end
    if len > 1 and due <= now then
      local up, ends = line[1], one.ends -- that end is its tag now
      ends = ends >= up.now - 1 and ends + 1 / p.weight or share.end_of(ends, up.now, p.weight, up.shares.largest)
      waiting.served(ctx, key, one, due, ends)
      if has_id and notes_left > 0 then settled[name], notes_left = len - 1, notes_left - 1 end
    else
      waiting.served(ctx, key, one)
      wait_at(name, len - 1, nil, due)
    end
    return true
  end

  -- turns: the turns of the due buckets of `work` (queue/drain), from where it stands, as long as they are plain. Where the last
  -- one has more to do than the plain way can, the reply is its next due, and how many of its jobs have left.
  function plain.turns(ctx, work)
    local names, dues, rec, policy_of_all, share = work.names, work.due, ctx.rec, ctx.rec.plain, work.share
    local i, quota, n, announced = work.at + 1, work.quota, #names, ctx.has_ended and work.announced
    local place = work.place or nil -- those that had been held stand nowhere
    while i <= n and quota > 0 do
      work.at = i -- whatever raises, raises at this one
      local name, due_text = names[i], dues[i + i]
      local queue = queues .. name
      local len = pcall_redis('LLEN', queue)
      if len == 0 or announced and announced[i] or len ~= 1 and type(len) ~= 'number' then break end
      local out, left_at, is_due = turn(ctx, name, policy_of_all or policy_of(rec, name), queue, len, place, due_text + 0,
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
