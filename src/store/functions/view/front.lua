-- needs: base, base.keys, context, context.trace, queue.envelope, queue.ids
-- Front: what the page of a bucket shows besides its row: the jobs that leave next, and the last dispatches. Nothing is
-- written.

local front = {}
do
  local refuse, is_error, wrong_type = base.refuse, base.is_error, base.wrong_type

  local JOBS_MOST = 100 -- jobs of a call
  local BYTES_MOST = 4096 -- bytes of each

  -- drip__front: the first bytes of the jobs that leave a bucket next, in the order of its queue.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us, how many jobs at most (1 to 100), how many bytes of each at most (1 to 4096)
  -- reply  { jobs that wait, bytes of a job, its first bytes, ... }
  -- errors BADBUCKET BADARG WRONGTYPE
  -- cost   O(jobs), and at most 1 MiB of jobs or one job: a job of a list must be read whole
  function front.jobs(redis_keys, args)
    local space, name, err = keys.bucket_of(redis_keys)
    if err then return err end
    local most, first = base.whole(args[2], 1, JOBS_MOST), base.whole(args[3], 1, BYTES_MOST)
    if not most or not first then
      return refuse('BADARG', 'front takes how many jobs, 1 to 100, and how many bytes of each, 1 to 4096')
    end
    local queue = redis_keys[1]
    local len = pcall_redis('LLEN', queue)
    if is_error(len) then return wrong_type(queue, 'list') end
    local reply, bytes, mark = { len }, 0, call('HGET', keys.of(space).policy, 'mark')
    for i = 1, min(most, len) do
      if bytes >= MIB then break end
      local stored = call('LINDEX', queue, -i)
      local job, o = envelope.body_of(mark, stored)
      if o then
        local known = ids.at_turn({ k = keys.of(space) }, name, o.id, 'q', o.accepted_us)
        job, bytes = envelope.changed_by(mark, o, known.changed).body, bytes + #(known.changed or '')
      end
      reply[2 * i], reply[2 * i + 1], bytes = #job, sub(job, 1, first), bytes + #stored
    end
    return reply
  end

  -- drip__drips: the last dispatches of a bucket, at most 100. They are remembered as long as somebody asks.
  -- keys   <prefix>:queue:<bucket>
  -- args   now_us
  -- reply  { now_us, jobs that have left since dispatches are remembered, due_us, left_us, ... }, times as texts; {
  --        now_us } where those of too many other buckets are remembered
  -- errors BADBUCKET
  -- cost   O(1)
  function front.drips(redis_keys, args)
    local space, name, err = keys.bucket_of(redis_keys)
    if err then return err end
    local ctx = context.open(space, args[1])
    local drips, n = trace.ask_dispatches(ctx.memory, name, ctx.now)
    return drips and { ctx.now_text, n, unpack(drips) } or { ctx.now_text }
  end
end
