-- needs: base, base.keys, context, policy.chain, route
-- Lifetimes: no key that dripd keeps ends by itself, except for the ids of jobs that have left and the states of gates.
-- Somebody may give one a time to live, by a script over all keys or by mistake: with the key its jobs would be gone
-- without a word. So the daemons look for such keys, and take that time away. A push or an EXPIRE of a queue is
-- reported to them, so that they find those at once (dispatch/drain); all other keys are looked at in turn.

local lifetimes = {}
do
  local PAGE = 100 -- nodes whose keys a call looks at, about
  local NOTES_MOST = 100 -- keys that a reply names
  local REPORTED_MOST = 20 -- reported queues that are looked at in a tenth of a second: each costs a call
  local REPORTED_US = 100000

  -- The keys without a name behind them; and the sets that have the nodes with work, each with the command that reads a
  -- page of it. (What cools has no work, and no key of its own.)
  local WHOLE = { 'policy', 'schedule', 'rest', 'paused', 'refused', 'full', 'slots', 'inflight', 'waiting', 'budgets',
    'slow', 'windows', 'told', 'paid', 'adjusted', 'over', 'settings', 'globs', 'ends', 'level', 'retries', 'turns',
    'delays', 'reached', 'routes', 'stats', 'rejected', 'dead', 'wake', 'events', 'changed', 'unset' }
  local SETS = {
    { 'schedule', 'ZSCAN' }, { 'paused', 'ZSCAN' }, { 'refused', 'ZSCAN' }, { 'full', 'ZSCAN' },
    { 'retries', 'ZSCAN' },
    { 'waiting', 'HSCAN' }, { 'budgets', 'HSCAN' },
  }
  local OF_BUCKETS = { 'queues', 'retry', 'delayed', 'jobs' }

  -- keep: take the time to live of a key away. Replies how long it was, in ms; nil where it had none.
  local function keep(ctx, key)
    local left = pcall_redis('PTTL', key)
    if type(left) ~= 'number' or left < 0 then return nil end
    call('PERSIST', key)
    context.count(ctx, 'lifetimes_removed', 1)
    return left
  end

  -- keep_noted: the same, and add it to the notes of a reply.
  local function keep_noted(ctx, notes, key)
    local left = keep(ctx, key)
    if left and #notes < 4 * NOTES_MOST then
      base.append(notes, 'expires', key, base.digits(left) .. ' ms', base.digits(1))
    end
  end

  -- may_end: whether any key on this server has a time to live, besides the heartbeats of whoever asks.
  -- cost   1 call
  function lifetimes.may_end()
    local figures, n = pcall_redis('INFO', 'keyspace'), 0
    if base.is_error(figures) then return true end
    for expires in gmatch(figures, 'expires=(%d+)') do n = n + expires end
    return n > 1
  end

  -- keep_common: the keys of which there is one each, and those of routes.
  local function keep_common(ctx, notes)
    local k = ctx.k
    for _, word in ipairs(WHOLE) do keep_noted(ctx, notes, k[word]) end
    local streams = pcall_redis('SMEMBERS', k.routes)
    for _, name in ipairs(base.is_error(streams) and {} or streams) do
      keep_noted(ctx, notes, keys.ready(ctx.space, name))
    end
    for _, name in ipairs((route.held(ctx))) do keep_noted(ctx, notes, k.wait .. '{' .. name .. '}') end
  end

  -- keep_page: the keys of some nodes with work. Replies whether there are more.
  local function keep_page(ctx, notes, at)
    local of = SETS[at.set]
    local page = pcall_redis(of[2], ctx.k[of[1]], at.cursor, 'COUNT', PAGE)
    if base.is_error(page) then page = { '0', {} } end
    for i, id in ipairs(base.names_in(page[2])) do
      if chain.budget_of(id) then
        for name in gmatch(of[1] == 'budgets' and page[2][2 * i] or '', '/([^/=]+)=') do
          keep_noted(ctx, notes, ctx.k.wait .. chain.bare(id) .. '{' .. name .. '}')
        end
      else
        for _, word in ipairs(OF_BUCKETS) do keep_noted(ctx, notes, ctx.k[word] .. id) end
      end
    end
    at.cursor = page[1]
    if at.cursor == '0' then at.set = at.set + 1 end
    return at.set <= #SETS
  end

  -- drip__keep: a part of a pass over the keys of dripd: those with a time to live lose it, and stay.
  -- keys   <prefix>:policy
  -- args   now_us
  -- reply  { 1: there is more in this pass, notes { kind, subject, detail, count, ... }: each key that had a time to
  --        live, at most 100 }
  -- cost   O(PAGE), and O(routes) at the beginning of a pass
  function lifetimes.keep(ctx)
    local m, notes = ctx.memory, {}
    if not m.lifetimes then
      m.lifetimes = { set = 1, cursor = '0' }
      keep_common(ctx, notes)
    end
    local is_more = keep_page(ctx, notes, m.lifetimes)
    if not is_more then m.lifetimes = nil end
    context.flush_counts(ctx)
    return { is_more and 1 or 0, notes }
  end

  -- look_at_reported: some queues were reported: somebody may have given one a time to live.
  -- cost   1 call for each of the first
  function lifetimes.look_at_reported(ctx, queues)
    local m = ctx.memory
    if ctx.now - m.reported_us >= REPORTED_US or ctx.now < m.reported_us then m.reported_us, m.reported = ctx.now, 0 end
    for i = 1, min(#queues, REPORTED_MOST - m.reported) do
      m.reported = m.reported + 1
      local left = keep(ctx, queues[i])
      if left then context.note(ctx, 'expires', queues[i], base.digits(left) .. ' ms') end
    end
  end
end
