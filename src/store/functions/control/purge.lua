-- needs: base, base.events, context, context.memory, queue.delayed, queue.ids, queue.push, queue.rejected,
--   queue.retries, state, state.bucket
-- Purge: an operator deletes what waits in a bucket, in one step. Jobs that are pushed later are not affected.

local purge = {}
do
  local refuse, is_error, digits = base.refuse, base.is_error, base.digits

  -- in_words: how many wait, as an event says it.
  local function in_words(jobs, waiting, aside)
    return digits(jobs)
      .. ' jobs, '
      .. digits(waiting)
      .. ' retries'
      .. (aside and ', ' .. digits(aside) .. ' delayed' or '')
  end

  -- throw_away: delete what is outside the queue: retries and delayed jobs.
  local function throw_away(ctx, name, takes_retries, takes_delayed)
    if takes_retries then retries.forget_all(ctx, name) end
    if takes_delayed then delayed.forget_all(ctx, name) end
    if takes_retries or takes_delayed then retries.index(ctx, name, true) end
  end

  -- drip__purge: unlink the queue of a bucket, and its retries and delayed jobs if asked to. As every step that takes
  -- jobs out of a queue, it first cuts what is above the allowance: the producers of those jobs were told that they
  -- were rejected. The bucket's rate stays: it cools until its due.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us, "1": the retries too | "0", by, user, reason (base/events), delayed jobs: "1": them too | "only":
  --        nothing but them
  -- reply  { jobs deleted, retries deleted, retries that stay, jobs that were cut; with a sixth argument also: delayed
  --        jobs deleted, delayed jobs that stay }
  -- errors BADBUCKET BADARG WRONGTYPE; nothing is changed
  -- cost   O(cut), as a drain's, and what Redis frees in the background
  function purge.purge(redis_keys, args)
    local ctx, s, err = push.read(redis_keys, args[1], true)
    if err then return err end
    local retry_key, takes_retries, takes_queue = ctx.k.retry .. s.bucket, args[2] == '1', args[6] ~= 'only'
    local takes_delayed = args[6] == '1' or not takes_queue
    local waiting = pcall_redis('ZCARD', retry_key)
    if is_error(waiting) then return base.wrong_type(retry_key, 'sorted set') end
    err = delayed.wrong_type(ctx, s.bucket) or ids.wrong_type(ctx, s.bucket)
    if err then return err end
    err = s.over > 0 and base.not_a('stream', 'XLEN', ctx.k.rejected)
    if err then return err end
    -- checks end here
    local jobs, over, aside = takes_queue and s.len or 0, s.over, delayed.count(ctx, s.bucket)
    if not rejected.trim_to_capacity(ctx, s) then
      return refuse('WRONGTYPE', ctx.k.rejected .. ' does not take what must be cut: see what it holds')
    end
    if takes_queue then
      call('UNLINK', s.queue)
      s.len, s.allowance = 0, nil
      bucket.keep_allowance(ctx, s)
    end
    local gone, aside_gone = takes_retries and waiting or 0, takes_delayed and aside or 0
    throw_away(ctx, s.bucket, takes_retries, takes_delayed)
    if ctx.magic then
      local states = { q = takes_queue or nil, r = takes_retries or nil, d = takes_delayed or nil }
      ids.forget_waiting(ctx, s.bucket, s.p, states)
      if s.len + waiting - gone + aside - aside_gone == 0 then ids.forget_lines(ctx, { s.bucket }) end
    end
    -- An empty bucket may be on the schedule for a retry. An `ordered` bucket may have waited for a retry that is gone:
    -- that wait is no lateness.
    if s.due then
      if s.due < ctx.now and bucket.is_freed(ctx, s.state, s.p, s.bucket) then s.due = ctx.now end
      s.retry_ready = retries.has_ended(ctx, s.bucket)
      state.enter(ctx, s, state.decide(ctx, s), 'change')
    end
    state.flush(ctx)
    memory.drop(ctx.memory, s.bucket)
    if jobs + gone + aside_gone > 0 then
      context.count(ctx, 'purged', jobs + gone + aside_gone)
      events.add(ctx.k, {
        what = 'purge', match = s.bucket, before = in_words(s.len + jobs, waiting, aside > 0 and aside),
        after = in_words(s.len, waiting - gone, aside > 0 and aside - aside_gone), by = args[3], user = args[4],
        reason = args[5],
      })
      context.wake(ctx.k) -- the daemons log it
    end
    if not args[6] then return { jobs, gone, waiting - gone, over } end -- as earlier versions ask
    return { jobs, gone, waiting - gone, over, aside_gone, aside - aside_gone }
  end
end
