-- needs: base
-- Delayed jobs: submitted jobs that wait outside the queue until their time comes. Then they take turns with the queue,
-- one job each.
--
-- <prefix>:delayed:<bucket> is sorted by that time. A member is the time of the accept in 16 digits and the envelope
-- (queue/envelope), so that of two jobs with the same time the one accepted earlier leaves first. The index of retries
-- (queue/retries) has the time of the first one.
-- <prefix>:turns names the buckets in which a job of the queue leaves next, while a delayed one could.
-- <prefix>:delays is the number of delayed jobs of all buckets, for display. A library before version 13 did not count,
-- so the first sweep (control/sweep) counts all of them, and then the field `delays` of the policy key is set. During
-- the count, `anew` of the sweep has the sum so far and the buckets in it. A bucket is added when the sweep reads it,
-- or when it changes before that. Later changes of it are added too.

local delayed = {}
do
  local STAMP = 16 -- digits before the envelope

  -- count: how many delayed jobs a bucket has.
  -- wrong_type: the refusal where the key holds something else, or nil.
  function delayed.count(ctx, name)
    return call('ZCARD', ctx.k.delayed .. name)
  end

  function delayed.wrong_type(ctx, name)
    return base.not_a('sorted set', 'ZCARD', ctx.k.delayed .. name)
  end

  -- count_in: add a bucket to the new sum; where it is in it already, add the change.
  local function count_in(ctx, anew, name, more)
    if anew.seen[name] then
      anew.sum = anew.sum + more
    else
      local n = pcall_redis('ZCARD', ctx.k.delayed .. name)
      anew.seen[name], anew.sum = true, anew.sum + (tonumber(n) or 0)
    end
  end

  -- note: the number of delayed jobs of a bucket changed by `more`. It is only a figure: an error must not stop a job.
  local function note(ctx, name, more)
    local left = pcall_redis('INCRBY', ctx.k.delays, base.digits(more))
    if type(left) == 'number' and left <= 0 then call('DEL', ctx.k.delays) end
    local at = ctx.memory.sweep
    if at and at.anew then count_in(ctx, at.anew, name, more) end
  end

  -- begin_count: the sweep begins to read the index: all delayed jobs are counted, if that was never done. Where
  -- nothing was ever submitted there are none.
  function delayed.begin_count(ctx, at)
    local is_right = not ctx.magic or call('HEXISTS', ctx.k.policy, 'delays') == 1
    at.anew = not is_right and { sum = 0, seen = {} }
  end

  -- count_page: the sweep reads a bucket.
  function delayed.count_page(ctx, at, name)
    if at.anew then count_in(ctx, at.anew, name, 0) end
  end

  -- end_count: the sweep has read the index. Replies false where the new sum was lost meanwhile (context/memory): then
  -- it must start again.
  function delayed.end_count(ctx, at)
    if at.anew == nil then return false end
    if at.anew then
      if at.anew.sum > 0 then call('SET', ctx.k.delays, base.digits(at.anew.sum)) else call('DEL', ctx.k.delays) end
      call('HSET', ctx.k.policy, 'delays', 'counted')
      at.anew = false
    end
    return true
  end

  -- in_all: the number of delayed jobs of all buckets.
  function delayed.in_all(ctx)
    return base.integer(pcall_redis('GET', ctx.k.delays)) or 0
  end

  -- first_time: the time of a bucket's first delayed job, or `huge`.
  function delayed.first_time(ctx, name)
    return base.first_score(ctx.k.delayed .. name)
  end

  -- add: a job that was accepted at `since` is delayed until `at`. The caller writes the index (retries.expect).
  -- writes  the bucket's delayed jobs      cost  O(log n)
  function delayed.add(ctx, name, at, since, job)
    call('ZADD', ctx.k.delayed .. name, base.digits(at), base.padded(since) .. job)
    note(ctx, name, 1)
  end

  -- member_of: the member of a job that was accepted at `since` and waits for `at`, or nil. Of many with the same time,
  -- which are in the order of their accepts, a few are read.
  -- cost   2 calls, and O(log n) where n jobs wait for the same time
  local function member_of(ctx, name, at, since)
    local key, at_text, stamp = ctx.k.delayed .. name, base.digits(at), base.padded(since)
    local low = call('ZCOUNT', key, '-inf', '(' .. at_text)
    local high = low + call('ZCOUNT', key, at_text, at_text) - 1
    while low <= high and ctx.bytes < MIB do
      local middle = floor((low + high) / 2)
      local text = call('ZRANGE', key, middle, middle)[1]
      ctx.bytes = ctx.bytes + #text
      local found = sub(text, 1, STAMP)
      if found == stamp then return text end
      if found < stamp then low = middle + 1 else high = middle - 1 end
    end
  end

  -- replace: a job that was accepted at `since` and waits for `at` waits for another time, with another envelope.
  -- Replies whether it was found.
  -- writes  the bucket's delayed jobs      cost  4 calls, see `member_of`
  function delayed.replace(ctx, name, at, since, new_at, job)
    local text = member_of(ctx, name, at, since)
    if not text then return false end
    call('ZREM', ctx.k.delayed .. name, text)
    call('ZADD', ctx.k.delayed .. name, base.digits(new_at), base.padded(since) .. job)
    return true
  end

  -- next_one: the first delayed job whose time has come: the member as stored, and without its stamp; or nil.
  function delayed.next_one(ctx, name)
    local text = call('ZRANGE', ctx.k.delayed .. name, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', '1')[1]
    if text then return text, sub(text, STAMP + 1) end
  end

  -- remove: a job has left; `text` is its member.
  function delayed.remove(ctx, name, text)
    call('ZREM', ctx.k.delayed .. name, text)
    note(ctx, name, -1)
  end

  -- forget_all: delete all delayed jobs of a bucket. The caller reconciles the index.
  function delayed.forget_all(ctx, name)
    local waited = delayed.count(ctx, name)
    call('UNLINK', ctx.k.delayed .. name)
    if waited > 0 then note(ctx, name, -waited) end
    call('HDEL', ctx.k.turns, name)
  end

  -- is_queue_next: whether a job of the queue leaves next.
  -- note_next: store that, where it changed.
  function delayed.is_queue_next(ctx, name)
    return call('HGET', ctx.k.turns, name) == '1'
  end

  function delayed.note_next(ctx, name, was, is)
    if is == was then return end
    if is then call('HSET', ctx.k.turns, name, '1') else call('HDEL', ctx.k.turns, name) end
  end
end
