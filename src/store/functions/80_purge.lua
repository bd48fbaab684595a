-- Purge: an operator throws away what waits in a bucket, in one step. What is pushed afterwards belongs to no purge.

local purge = {}
do
  local refuse, is_error, digits = base.refuse, base.is_error, base.digits

  -- jobs_and_retries: two numbers as an event says them.
  local function jobs_and_retries(jobs, waiting)
    return digits(jobs) .. ' jobs, ' .. digits(waiting) .. ' retries'
  end

  -- drip__purge: unlink the queue of a bucket, and its retries if asked to. As every step that takes jobs out of a queue it first
  -- cuts what is above the level, for those who pushed that have read that it was rejected. The bucket's rate stays: one that
  -- may not go yet rests until its due.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us, "1": the retries too | "0", by, user, reason (40_events)
  -- reply  { jobs thrown away, retries thrown away, retries that stay, jobs that were cut }
  -- errors BADBUCKET BADARG WRONGTYPE; nothing is changed
  -- cost   O(cut), as a drain's, and what Redis frees in the background
  function purge.purge(redis_keys, args)
    local ctx, s, err = push.read(redis_keys, args[1])
    if err then return err end
    local retry_key, takes_retries = ctx.k.retry .. s.bucket, args[2] == '1'
    local waiting = pcall_redis('ZCARD', retry_key)
    if is_error(waiting) then return base.wrong_type(retry_key, 'sorted set') end
    if s.over > 0 and is_error(pcall_redis('XLEN', ctx.k.rejected)) then
      return base.wrong_type(ctx.k.rejected, 'stream')
    end
    -- checks end here
    local jobs, over = s.len, s.over
    if not rejected.settle(ctx, s) then return refuse('WRONGTYPE', ctx.k.rejected .. ' does not take what must be cut: see what it holds') end
    call('UNLINK', s.queue)
    s.len, s.level = 0, nil
    bucket.keep_level(ctx, s)
    local gone = takes_retries and waiting or 0
    if takes_retries then retries.forget_all(ctx, s.bucket) end
    -- An empty bucket may stand on the schedule for a retry.
    if s.due then
      s.retry_ready = retries.has_ended(ctx, s.bucket)
      places.commit(ctx, s, bucket.place(ctx, s))
    end
    places.flush(ctx)
    memory.drop(ctx.memory, s.bucket)
    if jobs + gone > 0 then
      context.count(ctx, 'purged', jobs + gone)
      events.add(ctx.k, {
        what = 'purge', match = s.bucket, before = jobs_and_retries(jobs, waiting),
        after = jobs_and_retries(0, waiting - gone), by = args[3], user = args[4], reason = args[5],
      })
      context.wake(ctx.k) -- the daemons log it
    end
    return { jobs, gone, waiting - gone, over }
  end
end
