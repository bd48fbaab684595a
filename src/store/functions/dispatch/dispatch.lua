-- needs: base, context, context.memory, context.trace, dispatch.leave, limits.slots, queue.delayed, queue.envelope,
--   queue.rejected, queue.retries, route.room, state, state.bucket, state.line, tree.budget, tree.path
-- Dispatch: the turn of one bucket. Retries leave first, then the queue, as many as the rate, the route and the call
-- allow. Every job may take this path, so it does nothing that only some jobs need. Most turns take the fast path
-- (dispatch/fast_path), which does what `turn` would do.

local dispatch = {}
do
  local digits, room_of, send, admits, spent = base.digits, room.of, leave.send, leave.admits, context.spent
  local watched_in, watch_note = trace.of, trace.note

  -- The positions of the next jobs in a queue, as LINDEX takes them: '-1', '-2', ...
  local from_right = {}
  at_first_call[#at_first_call + 1] = function()
    for i = 1, 1000 do from_right[i] = digits(-i) end
  end
  dispatch.from_right = from_right

  -- from_retries: let out jobs whose back-off has ended; each counts against the rate. Replies how much of `allowed` is
  -- left: nothing where there may be more of them, because nothing overtakes them.
  local function from_retries(ctx, s, allowed)
    while true do
      local r = admits(ctx, s, allowed)
      local job, looked_at
      while r do
        job, looked_at = retries.next_one(ctx, s)
        if not looked_at then break end
        allowed = allowed - looked_at
        r = admits(ctx, s, allowed)
      end
      if not job then break end
      local o = job.options
      local cost = o.cost > 1 and o.cost or nil
      if cost and not leave.has_room(ctx, s, cost) then break end
      local extra = { 'id', o.id }
      if job.kept ~= '0' then extra[3], extra[4] = 'kept', job.kept end
      envelope.add_fields(extra, o)
      s.is_sent, s.retry = false, job
      if not send(ctx, s, r, job.body, job.attempt, 0, s.len > 0 or leave.others_wait(ctx, s, 1), cost, extra) then
        break
      end
      s.is_sent, s.retry = false, false
      retries.remove(ctx, s, job)
      allowed = allowed - 1
    end
    return allowed
  end

  -- read_head: the next job of a bucket, where the fast path has read it already.
  local function read_head(ctx, name)
    local head = ctx.head_of == name and ctx.head
    ctx.head_of, ctx.head = false, false
    return head
  end

  -- uses_turn: whether the job that is gone, when `before` jobs had left in this call, counts for what a turn allows. A
  -- held bucket has its turn for one job, which a dropped one does not use up.
  local function uses_turn(ctx, s, before)
    return s.left_state ~= 'held' or ctx.dispatched > before or spent(ctx)
  end

  -- take_out: remove the jobs that have left from the queue.
  local function take_out(s, is_small)
    local out = s.out
    -- RPOP is a little cheaper, but replies the job once more.
    if out == 1 and is_small then call('RPOP', s.queue) elseif out > 0 then call('LTRIM', s.queue, '0', -(out + 1)) end
    s.len, s.out = s.len - out, 0
  end

  -- from_queue: let out jobs from the right end of the queue. A job is removed from its queue only after it is in a
  -- stream, and all that have left at once (`s.out` of them; `after_error` does it where something raises). So no job
  -- is lost or sent again, and a job that may not leave is not touched. Jobs are read one by one, because the size of
  -- the next one is not known. Replies how much of `allowed` is left.
  local function from_queue(ctx, s, allowed)
    local queue, name, limit, len, is_small, magic = s.queue, s.bucket, ctx.limits.max_job_bytes, s.len, true, ctx.magic
    while s.out < len do
      local out = s.out
      local r = admits(ctx, s, allowed)
      if not r then break end
      local job = out == 0 and read_head(ctx, name) or call('LINDEX', queue, from_right[out + 1])
      local bytes, o, before = #job, magic and envelope.read(magic, job), ctx.dispatched
      if o then
        if not leave.submitted(ctx, s, r, o, 'q', bytes, out + 1 < len or leave.others_wait(ctx, s, 0)) then break end
      elseif bytes <= limit then
        if not send(ctx, s, r, job, '1', bytes, out + 1 < len or leave.others_wait(ctx, s, 0)) then break end
      elseif not rejected.turn_away(ctx, s, job, 'too_large') then
        s.parked = true
        break
      end
      is_small = bytes <= 4096
      s.out, s.is_sent = out + 1, false
      if uses_turn(ctx, s, before) then allowed = allowed - 1 end
    end
    take_out(s, is_small)
    s.allowance = s.len > s.p.capacity and s.len or nil
    return allowed
  end

  -- one_delayed: the next delayed job of a bucket leaves, or is dropped without a slot. Replies whether it is gone.
  local function one_delayed(ctx, s, text, job, more)
    local r = admits(ctx, s, 1)
    s.delayed = text
    local o = r and envelope.read(sub(job, 1, envelope.MAGIC_BYTES), job)
    if not o or not leave.submitted(ctx, s, r, o, 'd', #job, more) then return false end
    s.is_sent, s.delayed = false, false
    delayed.remove(ctx, s.bucket, text)
    return true
  end

  -- by_turns: let out delayed jobs whose time has come and jobs of the queue, by turns. Replies how much of `allowed`
  -- is left.
  local function by_turns(ctx, s, allowed)
    local name = s.bucket
    local was_queue = delayed.is_queue_next(ctx, name)
    local is_queue = was_queue
    while allowed > 0 do
      local text, job = delayed.next_one(ctx, name)
      if not text then
        is_queue = false
        if s.len > 0 then allowed = from_queue(ctx, s, allowed) end
        break
      end
      local takes_queue, len, before = is_queue and s.len > 0, s.len, ctx.dispatched
      local is_gone
      if takes_queue then
        allowed = allowed - 1 + from_queue(ctx, s, 1)
        is_gone = s.len < len
      else
        is_gone = one_delayed(ctx, s, text, job, len > 0 or leave.others_wait(ctx, s, 1))
        if is_gone and uses_turn(ctx, s, before) then allowed = allowed - 1 end
      end
      if not is_gone then break end
      is_queue = not takes_queue
    end
    delayed.note_next(ctx, name, was_queue, is_queue and delayed.next_one(ctx, name) ~= nil)
    return allowed
  end

  -- state_after: the state of a bucket after its turn. A bucket that is still due waits in its line, below a budget
  -- that of the budget, unless its turn is next. Where it was taken from its line, and no job has left, it keeps its
  -- rank.
  local function state_after(ctx, s)
    local p, parent = s.p, s.p.parent
    local is_due = not p.paused and not p.refused and s.due <= ctx.now and (s.len > 0 or s.retry_ready)
    if not is_due or p.concurrency and slots.is_full(ctx, s.bucket, p) then return state.decide(ctx, s) end
    local is_granted = s.granted and parent or s.left_state and not parent
    local waits = is_granted or parent and path.is_blocked(ctx, parent) or room_of(ctx, p.route).left <= 0
    if not waits then return state.decide(ctx, s) end
    if not s.has_left and not s.rank then
      s.rank = s.granted and s.state == state.line_of(ctx, p) and s.finish or p.route == ctx.at_route and s.left_rank
    end
    return parent and budget.queue_bucket(ctx, s) or state.line_of(ctx, p)
  end

  -- retry_first: whether an `ordered` bucket has a failed job that could leave: the queue waits for it.
  local function retry_first(ctx, s)
    return s.p.ordered and retries.one_has_ended(ctx, s.bucket)
  end

  -- let_out: let out what may leave in a turn. Replies how much of `allowed` is left.
  local function let_out(ctx, s, allowed, announced)
    local rest = allowed
    if announced then rest = from_retries(ctx, s, rest) end
    if not s.parked and not retry_first(ctx, s) then
      if announced and ctx.magic then
        rest = by_turns(ctx, s, rest)
      elseif s.len > 0 then
        rest = from_queue(ctx, s, rest)
      end
    end
    return rest
  end

  -- after_error: something raised an error while jobs left. What has left is removed from where it waited, so that it
  -- does not leave again. A job that may not have been charged is charged an interval.
  local function after_error(ctx, s)
    if s.is_sent then
      if s.retry then
        call('ZREM', ctx.k.retry .. s.bucket, s.retry.text)
      elseif s.delayed then
        delayed.remove(ctx, s.bucket, s.delayed)
      else
        s.out = s.out + 1
      end
      s.due = max(s.due, ctx.now + s.p.interval_us)
    end
    take_out(s, false)
  end

  -- turn: the turn of a bucket that is due. Replies how much of `allowed` is left, and whether the bucket is due again
  -- at once.
  -- reads, writes  its queue, retries and delayed jobs, its route, what `trim_to_capacity` and `state.enter` write
  -- cost  O(allowed)
  function dispatch.turn(ctx, s, allowed, announced, event)
    local rest, dispatched_before = allowed, ctx.dispatched
    if event == 'turn' and s.len + s.over == 0 and not announced then retries.note_vanished(ctx, s) end
    if rejected.trim_to_capacity(ctx, s) then
      if s.p.paused or s.p.refused then
        s.retry_ready = announced
      else
        local ok
        s.out, s.is_sent, s.retry, s.delayed = 0, false, false, false
        ok, rest = pcall(let_out, ctx, s, rest, announced)
        s.has_left = ctx.dispatched > dispatched_before
        if s.has_left and s.left_rank then line.served(ctx, ctx.at_route, s.bucket, s.left_rank) end
        if not ok then
          after_error(ctx, s)
          error(rest, 0)
        end
        if announced then s.retry_ready = retries.index(ctx, s.bucket, true) end
        local counts = ctx.memory.watched and watched_in(ctx.memory, ctx.now)
        if counts then watch_note(counts, s.bucket, ctx.dispatched - dispatched_before) end
      end
      if s.allowance ~= s.stored_allowance then bucket.keep_allowance(ctx, s) end
    else
      s.parked = true
    end
    if s.parked then
      bucket.park(ctx, s, event)
      return min(rest, allowed - 1), false
    end
    local to = state_after(ctx, s)
    state.enter(ctx, s, to, event)
    if s.granted and s.p.parent and s.has_left then
      budget.note_away(budget.get(ctx, s.p.parent), to == ctx.k.schedule and s.bucket or nil, s.p.route)
    end
    if (to == ctx.k.schedule or to == ctx.k.full or s.p.parent) and s.len > 0 and ctx.id then
      memory.note(ctx.memory, s.bucket, s.len, ctx.now)
    else
      memory.drop(ctx.memory, s.bucket)
    end
    return min(rest, allowed - 1), s.due <= ctx.now and to == ctx.k.schedule and not s.p.parent
  end
end
