-- needs: base, context.memory, context.trace, dispatch, dispatch.leave, limits.constraints, pace.rate, pace.share,
--   policy.record, queue.envelope, route, route.room, state, state.line, state.waiting, tree.budget, tree.path
-- The fast path of most turns. Most due buckets are within their capacity, have no retry or delayed job that may leave,
-- and no rollout is going on. For them a turn of a drain is three calls and little else, and one more deletes all
-- queues that such turns have emptied. All other turns take the full path (dispatch); tests/all/functions/fast_path.rs
-- compares the two.

local fast_path = {}
do
  local digits, after, policy_of, from_right = base.digits, rate.after, record.policy_of, dispatch.from_right
  local add, at_rate, ancestors_of = route.add, state.at_rate, budget.ancestors
  local admits_open, charge_open = path.admits_open, path.charge_open

  local OPENS = 123 -- the byte `{`: the id of a budget begins with it (policy/chain)

  -- What all turns of a call share, from `open` to `close`. A field of a table would cost several times as much.
  local m, now, now_text, queues, schedule, rest, limit, slowed, watched, dispatches, magic, magic_byte, settled, noted
  local to_schedule, scheduled, to_rest, rested, from_schedule, left_schedule, from_rest, left_rest, due_before,
  text_before
  -- What consecutive buckets with the same policy share (`use`). `is_open`: only dues can stop a job between the bucket
  -- and its route.
  local policy, source, is_stopped, weight, capacity, lease, step, catch_up_from, ancestors, is_open
  local r, stream, room_left, dispatched, bytes, latest -- its room, and the figures that `pause` writes
  local size -- of the last job that was read
  -- Jobs that leave together are about as late as each other. Those of one quarter (leave.quarter_of) are counted
  -- together: so many by now, and the bounds of that quarter.
  local in_quarter, quarter, least_late, beyond_late = 0, 0, 0, 0
  local emptied, emptied_count -- queues that `turns` has emptied, until `pause` deletes them; nil: it is not running

  -- fits: whether the buckets of this call may take the fast path.
  function fast_path.fits(ctx)
    return not ctx.old_rec and not ctx.has_allowances
  end

  -- count_late: count the jobs of the last quarter.
  local function count_late()
    if in_quarter > 0 then leave.count_late(m, quarter, in_quarter) end
    in_quarter = 0
  end

  -- open: begin the fast turns of a call.
  -- pause: a turn on the full path may follow: write the figures back and delete the emptied queues, so that it finds
  -- all as it is. That turn may change what is known of policies and paths.
  -- close: end the fast turns: the states that they entered are written with all others.
  function fast_path.open(ctx)
    m, now, now_text, limit, slowed, r = ctx.memory, ctx.now, ctx.now_text, ctx.limits.max_job_bytes, ctx.slowed, nil
    queues, schedule, rest, settled = ctx.k.queues, ctx.k.schedule, ctx.k.rest, ctx.id and memory.room_for_notes(m, now)
    watched, dispatches, magic, magic_byte =
      m.watched and trace.of(m, now), trace.dispatches_of(m), ctx.magic, ctx.magic and byte(ctx.magic)
    to_schedule, scheduled, to_rest, rested, from_schedule, left_schedule, from_rest, left_rest =
      {}, 0, {}, 0, {}, 0, {}, 0
    policy, source, due_before, noted, emptied, in_quarter = nil, nil, nil, 0, nil, 0
  end

  function fast_path.pause(ctx)
    count_late()
    if r then
      r.sent, r.left = r.sent + r.left - room_left, room_left
      ctx.dispatched, ctx.bytes, ctx.latest_us = dispatched, bytes, latest
    end
    policy, source, r, settled = nil, nil, nil, settled and m.settled
    local gone = emptied
    emptied = nil
    if gone and gone[1] then call('DEL', unpack(gone)) end
  end

  function fast_path.close(ctx)
    fast_path.pause(ctx)
    m.settled_count = m.settled_count + noted
    state.enter_all(ctx, to_schedule, to_rest, from_schedule, from_rest)
  end

  -- use: switch to the policy of the next buckets. Policies made of the same entry, each for its own budget, differ
  -- only in what is read first.
  local function use(ctx, p)
    policy, is_stopped = p, p.is_stopped
    ancestors = not is_stopped and p.parent and ancestors_of(ctx, p.parent) or false
    if r and p.made_of and p.made_of == source then return end
    if r then r.sent, r.left = r.sent + r.left - room_left, room_left end
    source, weight, capacity, lease, step, catch_up_from =
      p.made_of, p.weight, p.capacity, p.lease, p.part == 0 and p.step, now - p.catch_up_us
    r, dispatched, bytes, latest =
      room.of(ctx, p.route), r and dispatched or ctx.dispatched, r and bytes or ctx.bytes, r and latest or ctx.latest_us
    stream, room_left = r.stream, r.left
  end

  -- look_again: the room is used up, as far as it was known: look at the route.
  local function look_again(ctx, p)
    r.sent, r.left, ctx.bytes = r.sent + r.left - room_left, room_left, bytes
    r = room.of(ctx, p.route)
    stream, room_left, bytes = r.stream, r.left, ctx.bytes
  end

  -- ask_path: what `path.admits` replies for a bucket with this due; false where the lateness that it may make up for
  -- changes with each job.
  local function ask_path(ctx, p, due)
    local eligible_at = admits_open(ancestors, due)
    is_open = eligible_at and not watched
    if eligible_at then return eligible_at, due end
    ancestors = ancestors_of(ctx, p.parent)
    local constraint = ancestors[1].constraint
    if constraint and constraint.paid or ctx.has_told and path.is_told(ancestors) then return false end
    return path.admits(ctx, ancestors, due)
  end

  -- send: let out the n-th job of a queue, with the due of its bucket and the eligible time by its path. `finish` is
  -- the finish tag with which a budget granted the turn. Replies the bucket's next due; nil where the job needs the
  -- full path (`ctx.head` keeps it, so that it is not read twice), or where its stream did not take it.
  local function send(ctx, name, p, queue, n, due, eligible_at, due_text, finish)
    local job = call('LINDEX', queue, from_right[n])
    size = #job
    if size > limit or magic and byte(job) == magic_byte and envelope.read(magic, job) then
      if n == 1 then ctx.head_of, ctx.head = name, job end
      return nil
    end
    local added = add(stream, name, job, '1', due_text, now_text, lease)
    if added.err then -- a text has no such field
      fast_path.pause(ctx)
      leave.not_taken(ctx, room.of(ctx, p.route), added.err)
      return nil
    end
    if dispatches then trace.dispatched(dispatches, name, due_text, now_text) end
    room_left, dispatched, bytes = room_left - 1, dispatched + 1, bytes + size
    local late = now - eligible_at
    if late > latest then latest = late end
    if late < least_late or late >= beyond_late then
      count_late()
      quarter, least_late, beyond_late = leave.quarter_of(late)
    end
    in_quarter = in_quarter + 1
    if ancestors then
      if is_open then
        charge_open(ctx, ancestors, name, weight, finish)
      else
        path.charge(ctx, ancestors, name, p, finish)
      end
    end
    if due < catch_up_from then due = catch_up_from end
    if step then return due + step end
    return after(p, due)
  end

  -- take: remove n jobs that have left from a queue, which had `len`. RPOP is a little cheaper for a small job, but
  -- replies the job once more.
  local function take(name, queue, n, len)
    if emptied and n == len then
      emptied_count = emptied_count + 1
      emptied[emptied_count] = queue
    elseif n == 1 and size <= 4096 then
      call('RPOP', queue)
    else
      call('LTRIM', queue, '0', -(n + 1))
    end
    if watched then trace.note(watched, name, n) end
  end

  -- leaves: note that a bucket leaves the set in which it was.
  local function leaves(name, from)
    if from == schedule then
      left_schedule = left_schedule + 1
      from_schedule[left_schedule] = name
    elseif from == rest then
      left_rest = left_rest + 1
      from_rest[left_rest] = name
    end
  end

  -- enter: a bucket that was in the state `from` and has `len` jobs left enters the state that `state.at_rate` says.
  local function enter(ctx, name, len, from, due)
    local to = at_rate(ctx.k, len > 0, due, now)
    if due ~= due_before then due_before, text_before = due, digits(due) end -- many have the same
    if to == schedule then
      to_schedule[scheduled + 1], to_schedule[scheduled + 2] = text_before, name
      scheduled = scheduled + 2
      if settled then settled[name], noted = len, noted + 1 end
    else
      if to then
        to_rest[rested + 1], to_rest[rested + 2] = text_before, name
        rested = rested + 2
        if due < m.rest_us then m.rest_us = due end
      end
      if settled and settled[name] then settled[name] = nil end
    end
    if from ~= to then leaves(name, from) end
  end

  -- queue_bucket: a bucket is queued: it waits for its share, or its route, from now on.
  local function queue_bucket(ctx, name, p, len, from, due_text)
    local up = ancestors_of(ctx, p.parent)[1]
    waiting.join(ctx, waiting.line(ctx, up.id, p.route), name, due_text + 0, budget.finish_of(up, name, p))
    budget.comes_back(up, name)
    budget.begin_work(ctx, up, p.route)
    leaves(name, from)
    if settled then settled[name], noted = len, noted + 1 end
  end

  -- hold_bucket: a bucket that is due is held: its route takes no more in this call, or it had its turn there.
  local function hold_bucket(ctx, name, p, due, from)
    line.join(ctx, p.route, name, due, 1)
    leaves(name, from)
    if settled and settled[name] then settled[name] = nil end
  end

  -- turn: the turn of a bucket that is due and has `len` jobs, at least one; `most` may leave. Replies 0 where it needs
  -- the full path, and nothing was done for it; else how many of `most` are used up (1 where it was queued for its
  -- share, or held), and its next due where its turn continues on the full path. The third reply says whether it is due
  -- again at once. `rank`: it was taken from the line of its route, with this rank.
  local function turn(ctx, name, p, queue, len, from, due, due_text, most, rank)
    if p ~= policy then use(ctx, p) end
    if len > capacity or bytes >= MIB or is_stopped or slowed and slowed[name] then return 0 end
    if rank and (ancestors or due > now or p.route ~= ctx.at_route) then return 0 end
    if room_left <= 0 then
      if r.looked ~= ctx.calls then look_again(ctx, p) end
      if room_left <= 0 then
        if from ~= schedule or r.looked ~= ctx.calls then return 0 end
        if ancestors then queue_bucket(ctx, name, p, len, from, due_text) else hold_bucket(ctx, name, p, due, from) end
        return 1
      end
    end
    local eligible_at, out, in_a_row = due, 0, ancestors and 1 or most < len and most or len
    if rank then eligible_at, due_text = now, now_text end -- it waited for workers, which is not late
    if ancestors then
      local met = due
      eligible_at, due = ask_path(ctx, p, due)
      if eligible_at == false then return 0 end
      if not eligible_at or eligible_at > now then
        queue_bucket(ctx, name, p, len, from, due_text)
        return 1
      end
      if eligible_at ~= met then due_text = digits(eligible_at) end
    end
    repeat
      local next_due = send(ctx, name, p, queue, out + 1, due, eligible_at, due_text)
      if not next_due then break end
      due, out, eligible_at = next_due, out + 1, next_due
      if out == in_a_row or due > now or room_left <= 0 or bytes >= MIB then break end
      due_text = digits(due)
    until false
    if out == 0 then return 0 end
    take(name, queue, out, len)
    local is_due = len > out and due <= now
    if rank then
      line.served(ctx, p.route, name, rank)
      if is_due then
        hold_bucket(ctx, name, p, due, nil)
        return out
      end
    end
    if is_due and out < most then return out, due end
    enter(ctx, name, len - out, from, due)
    return out, nil, is_due
  end
  fast_path.turn = turn

  -- granted: a budget grants a turn to a bucket, `one` of its line for a route: one job leaves. Replies false where it
  -- needs the full path.
  function fast_path.granted(ctx, one, p)
    if one.due > now or p.route ~= one.route then return false end -- the clock stepped back; or it has moved
    local name = one.id
    if p ~= policy then use(ctx, p) end
    if (ctx.stored_constraints or ctx.constraints) and constraints.is_slowed(ctx, name, p) then return false end
    local queue = queues .. name
    local len = pcall_redis('LLEN', queue)
    if type(len) ~= 'number' or len == 0 or len > capacity or bytes >= MIB or is_stopped or not ancestors then
      return false
    end
    if room_left <= 0 then return false end
    local eligible_at, due = ask_path(ctx, p, max(one.due, ctx.resumed_at))
    if not eligible_at or eligible_at > now then return false end
    if ctx.at_route then eligible_at = now end -- it waited for workers, which is not late
    local up = ancestors[1]
    due = send(ctx, name, p, queue, 1, due, eligible_at, digits(eligible_at), one.rank)
    if not due then return false end
    take(name, queue, 1, len)
    if len > 1 and due <= now then
      -- That rank is its tag now.
      waiting.served(ctx, one, due, share.finish_of(one.rank, up.virtual_time, p.weight, up.shares))
      if settled then settled[name], noted = len - 1, noted + 1 end
    else
      waiting.served(ctx, one)
      enter(ctx, name, len - 1, nil, due)
    end
    budget.note_away(up, len > 1 and due > now and name or nil, p.route)
    return true
  end

  -- turns: take the turns of the due buckets of `work` (dispatch/drain), from the one after `work.at`, as long as they
  -- fit. Where the last one continues on the full path, replies its next due, and how many of its jobs have left.
  function fast_path.turns(ctx, work)
    local names, dues, rec, policy_of_all, share_of = work.names, work.due, ctx.rec, ctx.rec.plain, work.share
    local i, allowed, n, announced = work.at + 1, work.allowed, #names, ctx.has_ended and work.announced
    local ranks = work.ranks
    local from, left_at, out, is_due = work.from or nil, nil, nil, nil -- buckets that were held are in no set
    emptied, emptied_count = {}, 0
    while i <= n and allowed > 0 do
      work.at = i -- where it raises, this one is to blame
      local name, due_text = names[i], dues[i + i]
      if byte(name) == OPENS then break end -- it is a budget, whatever its queue holds
      local queue = queues .. name
      local len = pcall_redis('LLEN', queue)
      if len == 0 or announced and announced[i] or len ~= 1 and type(len) ~= 'number' then break end
      out, left_at, is_due = turn(ctx, name, policy_of_all or policy_of(rec, name), queue, len, from,
        due_text + 0,
        due_text, allowed < share_of and allowed or share_of, ranks and ranks[i])
      if out == 0 then break end
      allowed, i = allowed - out, i + 1
      if is_due then work.more = true end
      if left_at then break end
    end
    work.at, work.allowed = i - 1, allowed
    return left_at, out
  end
end
