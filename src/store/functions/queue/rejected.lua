-- needs: base, context, queue.envelope, queue.ids, queue.rejecting, state.bucket
-- Rejected: jobs that did not fit, were dropped or are too large: the stream that keeps them, and the cut that feeds
-- it.

local rejected = {}
do
  local digits, is_error = base.digits, base.is_error
  local note, count = context.note, context.count

  local EXCERPT = 4096 -- bytes kept of a job
  local STREAM_BYTES = 64 * MIB -- size of the stream
  local SURELY_SMALL = 12000 -- so many entries are surely below that size
  local MEASURE_EVERY = 256 -- entries between two measurements of a longer stream
  local LOOKS = 10 -- jobs that are read of those that a cut does not show

  -- add: add an entry: the first 4 KiB of a job, with its size where it is longer, or a count of jobs. Replies false
  -- where the stream does not take it.
  function rejected.add(ctx, name, reason, field, value)
    local keep, stream, added = ctx.limits.rejected_keep, ctx.k.rejected, nil
    if #value > EXCERPT then
      added = pcall_redis('XADD', stream, 'MAXLEN', keep, '*', 'bucket', name, field, sub(value, 1, EXCERPT), 'reason',
        reason,
        'bytes', #value)
    else
      added = pcall_redis('XADD', stream, 'MAXLEN', keep, '*', 'bucket', name, field, value, 'reason', reason)
    end
    if is_error(added) then
      note(ctx, 'refused', stream, is_error(added))
      return false
    end
    ctx.entries = ctx.entries + 1
    local m = ctx.memory
    m.entries = m.entries + 1
    -- Every entry is measured: a sample would only see the oldest part.
    if keep > SURELY_SMALL and m.entries % MEASURE_EVERY == 1 then
      local bytes = call('MEMORY', 'USAGE', stream, 'SAMPLES', 0)
      if bytes > STREAM_BYTES then
        call('XTRIM', stream, 'MAXLEN', floor(call('XLEN', stream) * STREAM_BYTES / bytes))
      end
    end
    return true
  end

  -- newest_accept: when the newest submitted one of the `n` oldest jobs of a queue was accepted, as far as the newest
  -- few of them tell; or nil.
  local function newest_accept(ctx, queue, n)
    for i = n, max(1, n - LOOKS + 1), -1 do
      local _, o = envelope.body_of(ctx.magic, call('LINDEX', queue, -i))
      if o then return o.accepted_us end
    end
  end

  -- cut: remove the jobs above its allowance from a queue, in one LTRIM: the newest, or with drop-oldest the oldest.
  -- The oldest `batch` of them get an entry each, within the bytes of this call. The others get one entry with their
  -- count.
  -- The jobs are read one by one, because the size of the next one is not known.
  -- Replies false, with the queue unchanged, where they could not be recorded.
  function rejected.cut(ctx, s)
    local wrong = ctx.magic and ids.wrong_type(ctx, s.bucket)
    if wrong then
      note(ctx, 'refused', ctx.k.rejected, wrong.err)
      return false
    end
    local queue, over, oldest_first, gone = s.queue, s.over, s.p.drop_oldest, {}
    local reason, shown, most =
      oldest_first and 'dropped' or s.p.closed and 'closed' or 'full', 0, min(over, ctx.limits.batch)
    while shown < most and ctx.bytes < MIB do
      local stored = call('LINDEX', queue, oldest_first and -(shown + 1) or over - shown - 1)
      local job, o, known = stored, nil, nil
      if ctx.magic then job, o = envelope.body_of(ctx.magic, stored) end
      if o then
        known = ids.at_turn(ctx, s.bucket, o.id, 'q', o.accepted_us)
        job = envelope.changed_by(ctx.magic, o, known.changed).body
      end
      if not rejected.add(ctx, s.bucket, reason, 'job', job) then return false end
      shown, ctx.bytes = shown + 1, ctx.bytes + #stored
      if o then gone[#gone + 1] = { id = o.id, known = known } end
    end
    local unread_till = oldest_first and shown < over and ctx.magic and newest_accept(ctx, queue, over)
    if shown < over and not rejected.add(ctx, s.bucket, reason, 'count', digits(over - shown)) then return false end
    if oldest_first then call('LTRIM', queue, 0, -(over + 1)) else call('LTRIM', queue, over, -1) end
    for _, one in ipairs(gone) do ids.dropped(ctx, s.bucket, one.id, one.known) end
    if unread_till then ids.forget_waiting(ctx, s.bucket, s.p, { q = true }, unread_till) end
    ctx.rejected = ctx.rejected + over
    count(ctx, oldest_first and 'dropped' or 'rejected', over)
    if reason == 'closed' then count(ctx, 'closed', over) end
    rejecting.add(ctx, s.bucket, over)
    s.over = 0
    return true
  end

  -- trim_to_capacity: cut a bucket as decided, write its allowance, and mark a change as applied; its state is not
  -- written. Replies false where it could not be cut.
  function rejected.trim_to_capacity(ctx, s)
    if s.over == 0 and not s.unapplied and s.allowance == s.stored_allowance then return true end
    local is_cut = s.over == 0 or rejected.cut(ctx, s)
    -- The allowance must be known also when the rollout is over and the bucket is cut later.
    if is_cut or s.unapplied then bucket.keep_allowance(ctx, s) end
    if s.unapplied then bucket.mark_applied(ctx, s) end
    return is_cut
  end

  -- turn_away: drop a job at its turn, without taking a slot, that is larger than max_job_bytes or whose deadline has
  -- passed: `reason` is 'too_large' or 'expired'. Replies false where that cannot be recorded, else sets `s.is_sent`.
  function rejected.turn_away(ctx, s, job, reason)
    if not rejected.add(ctx, s.bucket, reason, 'job', job) then return false end
    s.is_sent = true
    ctx.rejected, ctx.bytes = ctx.rejected + 1, ctx.bytes + #job
    count(ctx, reason, 1)
    rejecting.add(ctx, s.bucket, 1)
    return true
  end
end
