-- needs: base, base.memory, jobs.slots, queue.bucket, queue.delayed, queue.envelope, queue.leave, queue.places,
--   queue.rejected, queue.retries, route.forward, route.room, tree.budget, tree.path, view.trace
-- Dispatch: one bucket's turn. Retries first, then the queue, as many as the rate, the route and the call allow.
-- This is the path that every job takes: what is not needed for each of them is kept out of it. Most buckets go a shorter way (queue/plain),
-- which does what `turn` would do.

local dispatch = {}
do
  local digits, room_of, left, refused, may_go = base.digits, room.of, leave.left, leave.refused, leave.may_go
  local watched_in, watch_note, drips_of, drip = trace.of, trace.note, trace.dispatches_of, trace.dispatched

  -- The places of the jobs that leave next, as LINDEX takes them: '-1', '-2', ...
  local from_right = {}
  at_first_call[#at_first_call + 1] = function()
    for i = 1, 1000 do from_right[i] = digits(-i) end
  end
  dispatch.from_right = from_right

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
      if not envelope.is_bare(o) then envelope.add_fields(entry, o) end
      local added = r.forward and forward.send(r, job.body) or pcall_redis('XADD', r.stream, '*', unpack(entry))
      if added.err then -- a text has no such field
        refused(ctx, r, added.err)
        break
      end
      if s.p.limited then slots.take(ctx, s.p.route, added, path.limited(ctx, s.bucket, s.p)) end
      if drips then drip(drips, s.bucket, s.due_text or digits(s.met or s.due), ctx.now_text) end
      left(ctx, s, r, 0, s.len > 0 or leave.others_wait(ctx, s, 1), cost)
      retries.remove(ctx, s, job)
      quota = quota - 1
    end
    return quota
  end

  -- plain_head: the next job of a bucket, where it turned out to be none for the plain way: it is not read twice.
  local function plain_head(ctx, name)
    local head = ctx.head_of == name and ctx.head
    ctx.head_of, ctx.head = false, false
    return head
  end

  -- from_queue: let out jobs from the right end of the queue. A job is taken from its queue only after it is in a stream:
  -- whatever stops or raises in between, none is lost, and one that may not leave is not touched. Jobs are read one by one,
  -- for nothing tells how large the next one is. Replies what is left of the quota.
  local function from_queue(ctx, s, quota)
    local queue, name, limit, out, len = s.queue, s.bucket, ctx.limits.max_job_bytes, 0, s.len
    local now_text, lease, large, drips, magic = ctx.now_text, s.p.lease, false, drips_of(ctx.memory), ctx.magic
    while out < len do
      local r = may_go(ctx, s, quota)
      if not r then break end
      local job = out == 0 and plain_head(ctx, name) or call('LINDEX', queue, from_right[out + 1])
      local bytes, o = #job, magic and envelope.read(magic, job)
      if o then
        if not leave.submitted(ctx, s, r, o, bytes, out + 1 < len or leave.others_wait(ctx, s, 0)) then break end
      elseif bytes <= limit then
        local added = r.forward and forward.send(r, job) or pcall_redis('XADD', r.stream, '*', 'bucket', name, 'job', job, 'attempt', '1',
          'due_us', s.due_text or digits(s.met or s.due), 'at_us', now_text, 'lease_ms', lease)
        if added.err then
          refused(ctx, r, added.err)
          break
        end
        if s.p.limited then slots.take(ctx, s.p.route, added, path.limited(ctx, name, s.p)) end
        if drips then drip(drips, name, s.due_text or digits(s.met or s.due), now_text) end
        left(ctx, s, r, bytes, out + 1 < len or leave.others_wait(ctx, s, 0))
      elseif not rejected.turn_away(ctx, s, job, 'too_large') then
        s.parked = true
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
    if not r or not leave.submitted(ctx, s, r, envelope.read(sub(job, 1, envelope.MAGIC_BYTES), job), #job, more) then return false end
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
    if room_of(ctx, s.p.route).left <= 0 then return bucket.held_place(ctx, s) end
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
          if announced and ctx.magic then
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
      s.parked = true
    end
    if s.parked then
      bucket.park(ctx, s)
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
end
