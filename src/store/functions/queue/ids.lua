-- needs: base
-- Ids: what is known of submitted jobs by their ids.
--
-- <prefix>:ids:<bucket> is a sorted set of the ids that producers gave, by the time of the accept. While the policy's
-- `dedup` lasts, a job with the same id is a duplicate. The key expires with its youngest id. A score with half a
-- microsecond more says that the job was dropped: it was cancelled, or removed before it ever left.
-- <prefix>:jobs:<bucket> is a hash of the submitted jobs that wait, also those without a given id: "<state>
-- <accepted_us> <eta_us> <attempt>"
--   state   q in the queue, d delayed, r backing off; Q, D, R: the same, but cancelled: the job is dropped at its turn
--   eta_us  the earliest time at which it could leave, as estimated at the accept; of a job that backs off the end of
--           its back-off
-- Where a second job with an id was accepted while the first one still waits, the line is about the second one.
-- The line of a job that leaves is removed, so an id that is remembered and has no line has left. A cut of many jobs
-- does not read them all, so a few lines may be of jobs that are gone. The key expires some days after the last of its
-- jobs should have left. Where it has more lines than jobs can wait, old lines are dropped.

local ids = {}
do
  local digits = base.digits

  local LINE = '^(%a) (%d+) (%d+) (%d+)$'
  -- How long lines of jobs that should have left are kept, for a bucket that was stopped meanwhile.
  local KEPT_MS = 7 * 86400000
  local FORGET_MOST = 100 -- ids that one call forgets
  local PAGES_MOST = 20 -- pages of FORGET_MOST lines that a purge reads: about 6 us a line where there are many
  local PROBES = '3'

  -- find: the line of a waiting job: { state, accepted_us, eta_us, attempt }, or nil.
  function ids.find(ctx, name, id)
    local line = call('HGET', ctx.k.jobs .. name, id)
    local state, accepted, eta, attempt = match(line or '', LINE)
    if not state then return nil end
    return { state = state, accepted_us = accepted + 0, eta_us = eta + 0, attempt = attempt + 0 }
  end

  -- wrong_type: the refusal where a key holds something else, or nil.
  function ids.wrong_type(ctx, name)
    return base.not_a('hash', 'HLEN', ctx.k.jobs .. name) or base.not_a('sorted set', 'ZCARD', ctx.k.ids .. name)
  end

  -- is_remembered: whether a job with this id was accepted within `dedup`, so that another one is a duplicate; and
  -- whether it was dropped.
  function ids.is_remembered(ctx, name, p, id)
    local accepted = tonumber(call('ZSCORE', ctx.k.ids .. name, id) or nil)
    if not accepted then return false, false end
    local moment = floor(accepted)
    return moment + p.dedup_us > ctx.now, accepted > moment
  end

  local function write(ctx, name, id, it)
    local line = table.concat({ it.state, digits(it.accepted_us), digits(it.eta_us), digits(it.attempt) }, ' ')
    call('HSET', ctx.k.jobs .. name, id, line)
  end

  -- keep: make a key live at least this long.
  local function keep(key, ms)
    if call('PEXPIRE', key, digits(ms), 'GT') == 0 then call('PEXPIRE', key, digits(ms), 'NX') end
  end

  -- drop_stale: probe some lines of a key that has more lines than jobs can wait. Lines of jobs that should have left
  -- long ago are dropped.
  local function drop_stale(ctx, name, p)
    local key, aside = ctx.k.jobs .. name, call('ZCARD', ctx.k.delayed .. name) + call('ZCARD', ctx.k.retry .. name)
    local known = call('HLEN', key) - aside
    -- A queue may hold more than its capacity.
    if known <= p.capacity or known <= call('LLEN', ctx.k.queues .. name) then return end
    local some = call('HRANDFIELD', key, PROBES, 'WITHVALUES')
    for i = 1, #some, 2 do
      local state, _, eta = match(some[i + 1], LINE)
      -- A cancelled job must not leave after all: its line stays as long as the key would.
      local kept_us = state and find(state, '%u') and KEPT_MS * 1000 or 0
      if not state or eta + p.dedup_us + kept_us < ctx.now then call('HDEL', key, some[i]) end
    end
  end

  -- remember: a job was accepted, and waits in this state until `eta_us` at least. `is_given`: the producer gave its
  -- id, so another job with it is a duplicate.
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

  -- is_cancelled: whether a line says that its job is cancelled.
  function ids.is_cancelled(it) return it ~= nil and find(it.state, '%u') ~= nil end

  -- of_job: the line of a job with these options at its turn; nil where there is none, or where the line is about
  -- another job with that id. A failed job does not say when it was accepted.
  function ids.of_job(ctx, name, o)
    local it = ids.find(ctx, name, o.id)
    if not it then return nil end
    local backs_off = it.state == 'r' or it.state == 'R'
    if backs_off == (o.accepted_us ~= nil) or o.accepted_us and o.accepted_us ~= it.accepted_us then return nil end
    return it
  end

  -- left: a job is gone from where it waited. `it` is its line, nil where it has none. A remembered id stays
  -- remembered.
  function ids.left(ctx, name, o, it)
    if it then call('HDEL', ctx.k.jobs .. name, o.id) end
  end

  -- dropped: jobs are gone and will never leave: mark their remembered ids as dropped.
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

  -- forget: a job was dropped in favour of another one: remove all that is known of its id.
  function ids.forget(ctx, name, id)
    call('HDEL', ctx.k.jobs .. name, id)
    call('ZREM', ctx.k.ids .. name, id)
  end

  -- retries: a job with a remembered id backs off until `ends`.
  function ids.retries(ctx, name, id, attempt, ends)
    local accepted = call('ZSCORE', ctx.k.ids .. name, id)
    local it = accepted and ids.find(ctx, name, id)
    if not accepted or it and it.state ~= 'r' then return end
    write(ctx, name, id, { state = 'r', accepted_us = floor(accepted + 0), eta_us = ends, attempt = attempt })
    keep(ctx.k.jobs .. name, KEPT_MS + ceil(max(0, ends - ctx.now) / 1000))
  end

  -- cancel: mark a waiting job as cancelled: it is dropped at its turn.
  function ids.cancel(ctx, name, id, it)
    it.state = upper(it.state)
    write(ctx, name, id, it)
  end

  -- forget_lines: remove all lines of a bucket in which no job waits any more.
  function ids.forget_lines(ctx, name) call('UNLINK', ctx.k.jobs .. name) end

  -- forget_waiting: all jobs that waited in these states ('q', 'd', 'r'), cancelled or not, are gone: remove their
  -- lines. The number of lines that are read is bounded: those that are left are dropped in time (see above).
  function ids.forget_waiting(ctx, name, states)
    local key, cursor = ctx.k.jobs .. name, '0'
    for _ = 1, PAGES_MOST do
      local page, gone = call('HSCAN', key, cursor, 'COUNT', FORGET_MOST), {}
      for i = 1, #page[2], 2 do
        if states[lower(sub(page[2][i + 1], 1, 1))] then gone[#gone + 1] = page[2][i] end
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
