-- needs: base
-- Delayed jobs: submitted jobs that wait aside for their time. Then they take turns with the queue, one and one.
--
-- <prefix>:delayed:<bucket> is sorted by that time; its members are the moment of the accept in 16 digits and the envelope (queue/envelope), so
-- that of two with the same time the earlier one leaves first. The index of retries (queue/retries) tells when the first one's time has
-- come.
-- <prefix>:turns names the buckets in which a job of the queue leaves next, while a delayed one could. <prefix>:delays counts the delayed jobs
-- of all buckets, for those who look. A library before version 13 did not count, so the first sweep (control/sweep) counts all of them anew, and the
-- field `delays` of the policy key says that it has. While it does, `anew` of the sweep knows the sum so far and the buckets that are in it: each as
-- it is when the sweep comes by, or when something of it changes before that, and from then on with its changes.

local delayed = {}
do
  local STAMP = 16 -- digits before the envelope

  -- count: how many wait. wrong_type: the refusal where the key holds something else, or nil.
  function delayed.count(ctx, name)
    return call('ZCARD', ctx.k.delayed .. name)
  end

  function delayed.wrong_type(ctx, name)
    local key = ctx.k.delayed .. name
    if base.is_error(pcall_redis('ZCARD', key)) then return base.wrong_type(key, 'sorted set') end
  end

  -- count_in: a bucket that is not in the new sum comes into it; of one that is, so many more wait.
  local function count_in(ctx, anew, name, more)
    if anew.seen[name] then
      anew.sum = anew.sum + more
    else
      local n = pcall_redis('ZCARD', ctx.k.delayed .. name)
      anew.seen[name], anew.sum = true, anew.sum + (tonumber(n) or 0)
    end
  end

  -- note: in a bucket so many more wait, or fewer. It is a figure, and must not keep a job from its place.
  local function note(ctx, name, more)
    local left = pcall_redis('INCRBY', ctx.k.delays, base.digits(more))
    if type(left) == 'number' and left <= 0 then call('DEL', ctx.k.delays) end
    local at = ctx.memory.sweep
    if at and at.anew then count_in(ctx, at.anew, name, more) end
  end

  -- begin_count: the sweep begins to go through the index: they are counted anew, if that was never done. Where nothing was ever submitted there is
  -- none.
  function delayed.begin_count(ctx, at)
    local is_right = not ctx.magic or call('HEXISTS', ctx.k.policy, 'delays') == 1
    at.anew = not is_right and { sum = 0, seen = {} }
  end

  -- go_on_counting: the sweep comes by a bucket.
  function delayed.go_on_counting(ctx, at, name)
    if at.anew then count_in(ctx, at.anew, name, 0) end
  end

  -- end_count: the sweep has gone through the index. Replies false where the new sum was lost meanwhile (base/memory): it must go through it again.
  function delayed.end_count(ctx, at)
    if at.anew == nil then return false end
    if at.anew then
      if at.anew.sum > 0 then call('SET', ctx.k.delays, base.digits(at.anew.sum)) else call('DEL', ctx.k.delays) end
      call('HSET', ctx.k.policy, 'delays', 'counted')
      at.anew = false
    end
    return true
  end

  -- in_all: how many wait in all buckets.
  function delayed.in_all(ctx)
    return base.whole(pcall_redis('GET', ctx.k.delays)) or 0
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
    note(ctx, name, 1)
  end

  -- next_one: the job whose turn it is, of those whose time has come, as it is stored and without its stamp; or nil.
  function delayed.next_one(ctx, name)
    local text = call('ZRANGE', ctx.k.delayed .. name, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', '1')[1]
    if text then return text, sub(text, STAMP + 1) end
  end

  -- remove: a job has left, as it is stored.
  function delayed.remove(ctx, name, text)
    call('ZREM', ctx.k.delayed .. name, text)
    note(ctx, name, -1)
  end

  -- forget_all: throw away all delayed jobs of a bucket. The index is put right by the caller.
  function delayed.forget_all(ctx, name)
    local waited = delayed.count(ctx, name)
    call('UNLINK', ctx.k.delayed .. name)
    if waited > 0 then note(ctx, name, -waited) end
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
