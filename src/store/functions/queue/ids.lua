-- needs: base
-- Ids: what is known of submitted jobs by their ids.
--
-- <prefix>:ids:<bucket> is sorted by the moment of the accept and holds the ids that producers gave: for the policy's `dedup` a job with
-- the same id is a duplicate. It expires with its youngest. Half a microsecond more says that the job was dropped: it was cancelled, or gone
-- before it ever left.
-- <prefix>:jobs:<bucket> says of each submitted job that waits, whoever made up its id: "<state> <accepted_us> <eta_us> <attempt>"
--   state   q in the queue, d delayed, r backing off; Q, D, R: the same and cancelled: it is dropped when its turn comes
--   eta_us  when it could leave at the earliest, as it was answered at the accept; of one that backs off the end of that
-- Where a second job with an id was accepted while the first one still waits, the line is about the second one.
-- A job that leaves is taken out, so an id that is remembered and not found here has left. Jobs that are cut in great numbers are not
-- read, so a few lines may stand for jobs that are gone: the key expires some days after the last of its jobs should have left, and where it holds
-- more lines than jobs can wait the old ones are dropped.

local ids = {}
do
  local digits = base.digits

  local LINE = '^(%a) (%d+) (%d+) (%d+)$'
  local KEPT_MS = 7 * 86400000 -- the lines of jobs that should have left, where the bucket was stopped for so long
  local FORGET_MOST = 100      -- ids in a call
  local PAGES_MOST = 20        -- of as many lines, in a purge: some 6 us for each line where they are many
  local PROBES = '3'

  -- find: the line of a job that waits: { state, accepted_us, eta_us, attempt }, or nil.
  function ids.find(ctx, name, id)
    local line = call('HGET', ctx.k.jobs .. name, id)
    local state, accepted, eta, attempt = match(line or '', LINE)
    if not state then return nil end
    return { state = state, accepted_us = accepted + 0, eta_us = eta + 0, attempt = attempt + 0 }
  end

  -- wrong_type: the refusal where a key holds something else, or nil.
  function ids.wrong_type(ctx, name)
    if base.is_error(pcall_redis('HLEN', ctx.k.jobs .. name)) then return base.wrong_type(ctx.k.jobs .. name, 'hash') end
    if base.is_error(pcall_redis('ZCARD', ctx.k.ids .. name)) then return base.wrong_type(ctx.k.ids .. name, 'sorted set') end
  end

  -- is_remembered: whether a job with this id was accepted so lately that another one is a duplicate; and whether it was dropped.
  function ids.is_remembered(ctx, name, p, id)
    local accepted = tonumber(call('ZSCORE', ctx.k.ids .. name, id) or nil)
    if not accepted then return false, false end
    local moment = floor(accepted)
    return moment + p.dedup_us > ctx.now, accepted > moment
  end

  local function write(ctx, name, id, it)
    call('HSET', ctx.k.jobs .. name, id, table.concat({ it.state, digits(it.accepted_us), digits(it.eta_us), digits(it.attempt) }, ' '))
  end

  -- keep: a key lives for so long at least.
  local function keep(key, ms)
    if call('PEXPIRE', key, digits(ms), 'GT') == 0 then call('PEXPIRE', key, digits(ms), 'NX') end
  end

  -- drop_stale: of a key with more lines than jobs can wait some are looked at, and those of jobs that should have left long ago dropped.
  local function drop_stale(ctx, name, p)
    local key, aside = ctx.k.jobs .. name, call('ZCARD', ctx.k.delayed .. name) + call('ZCARD', ctx.k.retry .. name)
    local known = call('HLEN', key) - aside
    if known <= p.capacity or known <= call('LLEN', ctx.k.queues .. name) then return end -- a queue may hold more than its capacity
    local some = call('HRANDFIELD', key, PROBES, 'WITHVALUES')
    for i = 1, #some, 2 do
      local state, _, eta = match(some[i + 1], LINE)
      -- A job that was cancelled must not leave after all: its line stays for as long as the key would.
      local kept_us = state and find(state, '%u') and KEPT_MS * 1000 or 0
      if not state or eta + p.dedup_us + kept_us < ctx.now then call('HDEL', key, some[i]) end
    end
  end

  -- remember: a job was accepted, and waits in this state until `eta_us` at least. `is_given`: its id makes another one a duplicate.
  -- writes  jobs, ids      cost  O(log n)
  function ids.remember(ctx, name, p, id, is_given, state, eta_us)
    write(ctx, name, id, { state = state, accepted_us = ctx.now, eta_us = eta_us, attempt = 1 })
    keep(ctx.k.jobs .. name, KEPT_MS + ceil((eta_us - ctx.now + p.dedup_us) / 1000))
    drop_stale(ctx, name, p)
    if not is_given then return end
    local key, most = ctx.k.ids .. name, p.capacity + floor(p.dedup_us / max(1, p.step))
    call('ZADD', key, ctx.now_text, id)
    call('PEXPIRE', key, digits(ceil(p.dedup_us / 1000)))
    local over = call('ZCARD', key) - most
    local old = call('ZCOUNT', key, '-inf', digits(ctx.now - p.dedup_us))
    local gone = min(FORGET_MOST, max(over, old))
    if gone > 0 then call('ZREMRANGEBYRANK', key, '0', gone - 1) end
  end

  -- is_cancelled: whether a line says that its job is to be dropped.
  function ids.is_cancelled(it) return it ~= nil and find(it.state, '%u') ~= nil end

  -- of_job: the line of a job with these options whose turn has come; nil where there is none, or it is about another job of that id. Of one
  -- that failed nobody knows when it was accepted.
  function ids.of_job(ctx, name, o)
    local it = ids.find(ctx, name, o.id)
    if not it then return nil end
    local backs_off = it.state == 'r' or it.state == 'R'
    if backs_off == (o.accepted_us ~= nil) or o.accepted_us and o.accepted_us ~= it.accepted_us then return nil end
    return it
  end

  -- left: a job is gone from where it waited; `it` is its line, nil: it has none. An id that is remembered stays so.
  function ids.left(ctx, name, o, it)
    if it then call('HDEL', ctx.k.jobs .. name, o.id) end
  end

  -- dropped: jobs are gone and will not leave any more: what is remembered of their ids says so.
  -- writes  ids      cost  2 calls
  function ids.dropped(ctx, name, gone)
    local key, changes = ctx.k.ids .. name, {}
    local known = call('ZMSCORE', key, unpack(gone))
    for i, id in ipairs(gone) do
      local accepted = tonumber(known[i] or nil)
      if accepted then changes[#changes + 1], changes[#changes + 2] = digits(floor(accepted)) .. '.5', id end
    end
    if changes[1] then call('ZADD', key, 'XX', unpack(changes)) end
  end

  -- forget: a job was dropped for another one: nothing of its id stays.
  function ids.forget(ctx, name, id)
    call('HDEL', ctx.k.jobs .. name, id)
    call('ZREM', ctx.k.ids .. name, id)
  end

  -- retries: a job of a remembered id backs off until `ends`.
  function ids.retries(ctx, name, id, attempt, ends)
    local accepted = call('ZSCORE', ctx.k.ids .. name, id)
    local it = accepted and ids.find(ctx, name, id)
    if not accepted or it and it.state ~= 'r' then return end
    write(ctx, name, id, { state = 'r', accepted_us = floor(accepted + 0), eta_us = ends, attempt = attempt })
    keep(ctx.k.jobs .. name, KEPT_MS + ceil(max(0, ends - ctx.now) / 1000))
  end

  -- cancel: a job that waits is dropped when its turn comes.
  function ids.cancel(ctx, name, id, it)
    it.state = string.upper(it.state)
    write(ctx, name, id, it)
  end

  -- forget_lines: nothing waits any more, so no line is about a job that does.
  function ids.forget_lines(ctx, name) call('UNLINK', ctx.k.jobs .. name) end

  -- forget_waiting: all that waited in these states, cancelled or not, is gone: 'q', 'd', 'r'. A bounded part of it is looked at: what is left over is
  -- dropped in time (see above).
  function ids.forget_waiting(ctx, name, states)
    local key, cursor = ctx.k.jobs .. name, '0'
    for _ = 1, PAGES_MOST do
      local page, gone = call('HSCAN', key, cursor, 'COUNT', FORGET_MOST), {}
      for i = 1, #page[2], 2 do
        if states[string.lower(sub(page[2][i + 1], 1, 1))] then gone[#gone + 1] = page[2][i] end
      end
      if gone[1] then
        call('HDEL', key, unpack(gone))
        ids.dropped(ctx, name, gone)
      end
      cursor = page[1]
      if cursor == '0' then return end
    end
  end
end
