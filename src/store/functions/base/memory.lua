-- needs: base, tree.share
-- Memory: what this server remembers of a space between calls. It makes calls cheaper; nothing is missed when it is gone.
--
-- field     what                                                         owner
-- clock     the time of the last call                                    base/call
-- counts    figures that are not yet written                             base/call
-- lates     the lateness of dispatches, not yet written                  queue/leave, queue/plain
-- sweep     where the sweep stands                                       control/sweep
-- refused_again, refused_at  the refused are to be looked at, and where that stands     control/sweep; set by whoever changes a budget
-- settled   how a dispatch left the queues, for its echo                 this file: note, ask, drop, forget
-- leases    the lease of entries that workers hold                       this file: note_lease, ask_lease, age_leases
-- drained_us the time of the last drain                                 queue/drain
-- trusted_us  before then another server may have been at work           base/call
-- rooms     how many more jobs each route takes                          route/room
-- rest_us   nothing at rest is past its due before this moment           queue/places
-- forgot_us when those at rest were last forgotten                           queue/places
-- over_us   nothing of brakes is over before this moment               pace/brake
-- entries   rejected since the stream was measured                       queue/rejected
-- view, prev_view  the records with what operators have set laid over them      base/call
-- budgets   what is known of budgets and of their children's shares      tree/budget
-- passes    passes of the reaper                                         jobs/reap
-- delivered of each route the last delivered id in the last pass of the reaper, and how often groups had been moved by then     jobs/reap
-- heal      where the pass over the slots stands                          jobs/heal
-- rejecting how many jobs of which bucket were rejected lately           queue/rejecting
-- top       the last ranking of the buckets                              view/walk
-- watched   what leaves the nodes that somebody looks at                 view/trace
--
-- All of it is forgotten with the record (but for what `hand_over` keeps), and with the server.

local memory = {}
do
  local SETTLED_US = 250000   -- how long it is remembered how a dispatch left a queue, unless its echo comes sooner
  local SETTLED_MOST = 10000  -- and of how many queues
  local LEASES = 200000       -- entries whose lease is remembered, at least
  local LEASE_AGE_US = 60000000 -- those that no pass asked for in so long are forgotten in as long again
  local LARGE_MOST = 8        -- memories that hold much, half a MiB or so

  local by_name, count = {}, 0

  local function name_of(space, id)
    return space .. '\0' .. (id or '')
  end

  -- forget_budgets: nothing but these shares of their children is remembered of budgets. distrust: what is remembered of them may not be
  -- what is stored any more. Their shares are kept (tree/share). replaced: another server may have written everything meanwhile, so neither is
  -- what was counted of delayed jobs by now.
  function memory.forget_budgets(m, shares)
    m.budgets = { of = {}, count = 0, shares = shares, changed = {}, is_written = true, call = 0, rec = nil }
    memory.forget_lines(m.budgets)
  end

  -- forget_lines: which budgets are above which node (tree/budget):
  --   lines, begun   by the id of the nearest one the list of all, and by that list the call that has looked at it
  --   ways           the same list by the policy of a bucket
  function memory.forget_lines(all)
    all.lines, all.begun, all.ways, all.way_count = {}, {}, {}, 0
  end

  function memory.distrust(m)
    if not m.budgets then return end
    for _, b in pairs(m.budgets.of) do share.keep(b) end
    memory.forget_budgets(m, m.budgets.shares)
  end

  function memory.replaced(m)
    if m.budgets then memory.distrust(m) end
    if m.sweep and m.sweep.anew then m.sweep.anew = nil end
  end

  -- of: the memory of a space under a record.
  function memory.of(space, id)
    local name = name_of(space, id)
    local m = by_name[name]
    if not m then
      if count >= 256 then by_name, count = {}, 0 end
      m = {
        clock = 0, counts = {}, flushed_us = 0, lates = {}, late_from = 0, late_to = 0,
        settled = {}, settled_us = 0, settled_count = 0, young_leases = {}, old_leases = {}, lease_count = 0, aged_us = 0,
        rest_us = 0, forgot_us = 0, over_us = 0, drained_us = -huge, trusted_us = -huge, rooms = {}, entries = 0, passes = 0, delivered = {},
      }
      by_name[name], count = m, count + 1
    end
    return m
  end

  -- holds_much: a memory is about to hold `rejecting` or `top`. Where too many do, the one that began first lets go of both: a space
  -- whose record was lost leaves its memory behind.
  local large = {}

  function memory.holds_much(m)
    for _, other in ipairs(large) do
      if other == m then return end
    end
    large[#large + 1] = m
    if #large > LARGE_MOST then
      local first = table.remove(large, 1)
      first.rejecting, first.top = nil, nil
    end
  end

  -- forget: what was true of the queues may not be true any more.
  function memory.forget(m, now)
    m.settled, m.settled_us, m.settled_count = {}, now, 0
  end

  -- note: how a dispatch left the queue of a bucket that is scheduled: so many jobs, none above its level.
  function memory.note(m, bucket, len, now)
    if m.settled_count >= SETTLED_MOST then memory.forget(m, now) end
    m.settled[bucket], m.settled_count = len, m.settled_count + 1
  end

  -- room, noted: the same for many: how many more notes there is room for, and how many there was room for after them.
  function memory.room(m)
    return SETTLED_MOST - m.settled_count
  end

  function memory.noted(m, left)
    m.settled_count = SETTLED_MOST - left
  end

  -- ask: whether a queue still is as a dispatch left it: each daemon hears of the dispatch, and asks.
  function memory.ask(m, bucket, len)
    return m.settled[bucket] == len
  end

  -- drop: what was noted of a bucket holds no more.
  function memory.drop(m, bucket)
    if m.settled[bucket] then m.settled[bucket] = nil end
  end

  -- refresh: forget what is too old to be believed.
  function memory.refresh(m, now)
    if now - m.settled_us > SETTLED_US or now < m.clock then memory.forget(m, now) end
  end

  -- note_lease, ask_lease: how long an entry may be held, so that it is read once and not in every pass. In two halves, as
  -- with policies.
  function memory.note_lease(m, entry, lease_ms)
    if m.lease_count >= LEASES then m.young_leases, m.old_leases, m.lease_count = {}, m.young_leases, 0 end
    m.young_leases[entry], m.lease_count = lease_ms, m.lease_count + 1
  end

  function memory.ask_lease(m, entry)
    local lease = m.young_leases[entry]
    if lease then return lease end
    lease = m.old_leases[entry]
    if lease then memory.note_lease(m, entry, lease) end
    return lease
  end

  -- age_leases: a pass begins. Entries that were finished are not asked for any more: without this their leases would stay until there are
  -- too many.
  function memory.age_leases(m, now)
    if now - m.aged_us < LEASE_AGE_US and now >= m.aged_us then return end
    m.young_leases, m.old_leases, m.lease_count, m.aged_us = {}, m.young_leases, 0, now
  end

  -- hand_over: a new record begins with what is remembered under the old one, save where the sweep stands, for it begins anew.
  function memory.hand_over(space, old_id, new_id)
    local name = name_of(space, old_id)
    local m = by_name[name]
    if not m then return end
    by_name[name], by_name[name_of(space, new_id)] = nil, m
    m.sweep, m.view, m.prev_view = nil, nil, nil
    for _, r in pairs(m.rooms) do r.left = 0 end -- its limits may be others: each route is looked at
    memory.forget(m, 0)
  end
end
