-- needs: base, pace.share
-- Memory: what this server remembers of a space between calls. It makes calls cheaper; where it is lost nothing goes
-- wrong.
--
-- field     what                                                         owner
-- clock     the time of the last call                                    context
-- counts    figures that are not written yet                             context
-- lates     the lateness of dispatches, not written yet                  dispatch/leave, dispatch/fast_path
-- sweep     the position of the sweep                                    control/sweep
-- refused_again, refused_at  whether refused nodes must be looked at again, and the position
--                                                                        control/sweep
-- settled   how a dispatch left the queues, to recognise its echo        this file: note, ask, drop, forget
-- leases    the lease of entries that workers hold                       this file: note_lease, ask_lease, age_leases
-- drained_us, drainer  the time of the last drain, and the name of this server then
--                                                                        context
-- era       a number that grows where another server may have written    context
-- rooms     how many more jobs each route takes                          route/room
-- rest_us   no cooling node is past its due before this time             state
-- forgot_us when cooled nodes were last forgotten                        state
-- has_adopted  held buckets of versions before 20 have been moved        state
-- held_next  the held route with which the next call goes on             dispatch/drain
-- over_us   no constraint expires before this time                       limits/constraints
-- entries   entries added to `rejected` since the stream was measured    queue/rejected
-- view, old_view  the records overridden by what operators have set      context
-- budgets   what is known of budgets and of their children's shares      tree/budget
-- passes    the number of passes of the reaper                           jobs/reap
-- positions by route how far its group has come                          route/position
-- lifetimes the position of the pass over the keys; reported, reported_us  how many reported queues were looked at, and
-- since when                                                             control/lifetimes
-- heal      the position of the pass over the slots                      jobs/heal
-- is_uncountable  whether the taken slots could not be counted (limits/slots)
--                                                                        jobs/heal
-- recount   the position of the pass over what is in flight               control/sweep
-- parked    why the last turn of a bucket failed                         this file: note_parked, ask_parked
-- rejecting how many jobs of each bucket were rejected lately            queue/rejecting
-- top       the last ranking of the buckets                              view/walk
-- watched   what leaves the nodes that somebody looks at                 context/trace
--
-- All of it is lost with the server. A new record drops what `hand_over` does not keep.

local memory = {}
do
  local SETTLED_US = 250000 -- how long the length that a dispatch left is remembered, unless its echo comes sooner
  local SETTLED_MOST = 10000 -- and of how many queues
  local LEASES = 200000 -- entries whose lease is remembered, at least
  local LEASE_AGE_US = 60000000 -- leases that no pass asked for in this time are forgotten in as much time again
  local LARGE_MOST = 64 -- spaces that may remember much, half a MiB or so
  local SPACES = 256 -- spaces that are remembered, at least
  local PARKED_MOST = 1000 -- parked buckets of which it is remembered why

  local by_name, before, count = {}, {}, 0 -- in two halves: used lately, and used before that

  local function name_of(space, id)
    return space .. '\0' .. (id or '')
  end

  -- forget_budgets: forget all that is remembered of budgets, but for the `shares` given.
  -- distrust: what is remembered of budgets may differ from what is stored: forget it, but keep the shares
  -- (pace/share).
  -- replaced: another server may have written everything meanwhile: forget also what was counted of delayed jobs.
  function memory.forget_budgets(m, shares)
    m.budgets = { of = {}, count = 0, shares = shares, changed = {}, is_written = true, call = 0, rec = nil }
    memory.forget_paths(m.budgets)
  end

  -- forget_paths: forget which budgets are above which node (tree/budget): `paths` has the path by the id of its
  -- nearest budget, `begun` the call that began with it, by path.
  function memory.forget_paths(all)
    all.paths, all.begun = {}, {}
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
      if count >= SPACES then by_name, before, count = {}, by_name, 0 end
      m = before[name] or {
        clock = 0, counts = {}, flushed_us = 0, lates = {},
        settled = {}, settled_us = 0, settled_count = 0, young_leases = {}, old_leases = {}, lease_count = 0,
        aged_us = 0,
        rest_us = 0, forgot_us = 0, over_us = 0, drained_us = -huge, era = 0, rooms = {},
        entries = 0,
        passes = 0, positions = {}, reported = 0, reported_us = -huge,
      }
      by_name[name], count = m, count + 1
    end
    return m
  end

  -- holds_much: a memory is about to hold `rejecting` or `top`. Where too many do, the one that began first loses both:
  -- a space whose record was lost leaves its memory behind.
  local large = {}

  function memory.holds_much(m)
    if m.is_large then return end
    m.is_large, large[#large + 1] = true, m
    if #large > LARGE_MOST then
      local first = table.remove(large, 1)
      first.is_large, first.rejecting, first.top = nil, nil, nil
    end
  end

  -- forget: forget how dispatches left the queues.
  function memory.forget(m, now)
    m.settled, m.settled_us, m.settled_count = {}, now, 0
  end

  -- note: a dispatch left so many jobs, none above its allowance, in the queue of a scheduled bucket.
  function memory.note(m, bucket, len, now)
    if m.settled_count >= SETTLED_MOST then memory.forget(m, now) end
    m.settled[bucket], m.settled_count = len, m.settled_count + 1
  end

  -- room_for_notes: the notes of a call that may make many, bucket -> jobs.
  function memory.room_for_notes(m, now)
    if m.settled_count >= SETTLED_MOST then memory.forget(m, now) end
    return m.settled
  end

  -- ask: whether a queue has the length that a dispatch left: every daemon hears of the dispatch, and asks.
  function memory.ask(m, bucket, len)
    return m.settled[bucket] == len
  end

  -- drop: what was noted of a bucket is no longer true.
  function memory.drop(m, bucket)
    if m.settled[bucket] then m.settled[bucket] = nil end
  end

  -- refresh: forget what is too old to be believed.
  function memory.refresh(m, now)
    if now - m.settled_us > SETTLED_US or now < m.clock then memory.forget(m, now) end
  end

  -- note_lease: remember how long an entry may be held, so that it is not read in every pass. They are in two halves,
  -- as policies are. ask_lease: that time, or nil.
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

  -- age_leases: a pass begins. Nobody asks for finished entries any more, so without this their leases would stay until
  -- there are too many.
  function memory.age_leases(m, now)
    if now - m.aged_us < LEASE_AGE_US and now >= m.aged_us then return end
    m.young_leases, m.old_leases, m.lease_count, m.aged_us = {}, m.young_leases, 0, now
  end

  -- note_parked: a bucket is parked until `due`, because of what was noted. ask_parked: that note, where the bucket
  -- still has this due; else nil.
  function memory.note_parked(m, bucket, due, noted)
    if not m.parked or m.parked_count >= PARKED_MOST then m.parked, m.parked_count = {}, 0 end
    if not m.parked[bucket] then m.parked_count = m.parked_count + 1 end
    m.parked[bucket] = { due = due, noted = noted }
  end

  function memory.ask_parked(m, bucket, due)
    local it = m.parked and m.parked[bucket]
    return it and it.due == due and it.noted or nil
  end

  -- hand_over: a new record takes over what is remembered under the old one, but not the position of the sweep: it
  -- begins anew.
  function memory.hand_over(space, old_id, new_id)
    local name = name_of(space, old_id)
    local m = by_name[name] or before[name]
    if not m then return end
    by_name[name], before[name], by_name[name_of(space, new_id)] = nil, nil, m
    m.sweep, m.view, m.old_view = nil, nil, nil
    for _, r in pairs(m.rooms) do r.left = 0 end -- its limits may differ: each route is looked at
    memory.forget(m, 0)
  end
end
