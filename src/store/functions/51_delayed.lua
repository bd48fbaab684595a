-- Delayed jobs: submitted jobs that wait aside for their time. Then they take turns with the queue, one and one.
--
-- <prefix>:delayed:<bucket> is sorted by that time; its members are the moment of the accept in 16 digits and the element (35_element), so
-- that of two with the same time the earlier one leaves first. The index of retries (52_retries) tells when the first one's time has
-- come.
-- <prefix>:turns names the buckets in which a job of the queue leaves next, while a delayed one could. <prefix>:delays counts the delayed jobs
-- of all buckets, for those who look.

local delayed = {}
do
  local STAMP = 16 -- digits before the element

  -- count: how many wait. wrong_type: the refusal where the key holds something else, or nil.
  function delayed.count(ctx, name)
    return call('ZCARD', ctx.k.delayed .. name)
  end

  function delayed.wrong_type(ctx, name)
    local key = ctx.k.delayed .. name
    if base.is_error(pcall_redis('ZCARD', key)) then return base.wrong_type(key, 'sorted set') end
  end

  -- note: so many more wait, or fewer. It is a figure, and must not keep a job from its place.
  local function note(ctx, more)
    local left = pcall_redis('INCRBY', ctx.k.delays, base.digits(more))
    if type(left) == 'number' and left <= 0 then call('DEL', ctx.k.delays) end
  end

  -- in_all: how many wait in all buckets.
  function delayed.in_all(ctx)
    local n = pcall_redis('GET', ctx.k.delays)
    return type(n) == 'string' and tonumber(n) or 0
  end

  -- first_time: the time of the first one, or `huge`.
  function delayed.first_time(ctx, name)
    local first = call('ZRANGE', ctx.k.delayed .. name, '0', '0', 'WITHSCORES')
    return first[2] and first[2] + 0 or huge
  end

  -- add: a job waits until `at`. The index is written by the caller (retries.expect).
  -- writes  the bucket's delayed jobs      cost  O(log n)
  function delayed.add(ctx, name, at, job)
    call('ZADD', ctx.k.delayed .. name, base.digits(at), base.padded(ctx.now) .. job)
    note(ctx, 1)
  end

  -- next_one: the job whose turn it is, of those whose time has come, as it is stored and without its stamp; or nil.
  function delayed.next_one(ctx, name)
    local text = call('ZRANGE', ctx.k.delayed .. name, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', '1')[1]
    if text then return text, sub(text, STAMP + 1) end
  end

  -- remove: a job has left, as it is stored.
  function delayed.remove(ctx, name, text)
    call('ZREM', ctx.k.delayed .. name, text)
    note(ctx, -1)
  end

  -- forget_all: throw away all delayed jobs of a bucket. The index is put right by the caller.
  function delayed.forget_all(ctx, name)
    local waited = delayed.count(ctx, name)
    call('UNLINK', ctx.k.delayed .. name)
    if waited > 0 then note(ctx, -waited) end
    call('HDEL', ctx.k.turns, name)
  end

  -- is_queue_next: whether a job of the queue leaves next. note_next: say so, where it changed.
  function delayed.is_queue_next(ctx, name)
    return call('HGET', ctx.k.turns, name) == '1'
  end

  function delayed.note_next(ctx, name, was, is)
    if is == was then return end
    if is then call('HSET', ctx.k.turns, name, '1') else call('HDEL', ctx.k.turns, name) end
  end
end
