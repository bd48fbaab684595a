-- needs: base
-- Trace: how many jobs have left the buckets, or passed through the budgets, that somebody looks at just now (`dripd top`). Only what is
-- asked for is counted, in the memory of this server alone. Where nobody looks it costs a dispatch one comparison.
--
-- Of a bucket whose page is open (the dashboard) the last dispatches are remembered too: when each job was due, and when it left.

local trace = {}
do
  local KEPT_US = 150000000 -- what nobody has asked for this long is counted no more; Prometheus asks once a minute unless told otherwise
  local DRIPS_KEPT_US = 30000000
  local MOST = 2000        -- nodes that are counted, of one prefix
  local DRIPS_MOST = 64    -- buckets whose dispatches are remembered
  local DRIPS = 100        -- dispatches of each

  -- of: what is counted now, node -> jobs; nil where nobody looks.
  function trace.of(m, now)
    local w = m.watched
    if not w then return nil end
    if now > w.asked_us + KEPT_US or now < w.asked_us - KEPT_US then m.watched = nil end
    if w.drips and now > w.drips_asked_us + DRIPS_KEPT_US then w.drips, w.dripping = nil, 0 end
    return m.watched and w.counts
  end

  -- note: so many jobs have left a node.
  function trace.note(counts, id, n)
    if counts[id] then counts[id] = counts[id] + n end
  end

  -- drips_of: the dispatches that are remembered, bucket -> its own; nil where nobody wants any.
  function trace.dispatches_of(m)
    local w = m.watched
    return w and w.drips
  end

  -- drip: a job has left a bucket. The oldest of those remembered makes room.
  function trace.dispatched(drips, name, due, now)
    local d = drips[name]
    if not d then return end
    local at = 2 * (d.n % DRIPS)
    d[at + 1], d[at + 2], d.n = due, now, d.n + 1
  end

  -- Forget the nodes that nobody has asked for lately.
  local function tidy(w, now)
    for id, asked_us in pairs(w.by) do
      if now > asked_us + KEPT_US then w.by[id], w.counts[id], w.size = nil, nil, w.size - 1 end
    end
    for id, d in pairs(w.drips or {}) do
      if now > d.asked_us + DRIPS_KEPT_US then w.drips[id], w.dripping = nil, w.dripping - 1 end
    end
    if w.dripping == 0 then w.drips = nil end
    w.tidied_us = now
  end

  -- watched: what is counted now, from now on at least.
  local function watched(m, now)
    trace.of(m, now)
    local w = m.watched
    if not w then
      w = { counts = {}, by = {}, size = 0, dripping = 0, asked_us = now, drips_asked_us = now, tidied_us = now }
      m.watched = w
    end
    w.asked_us = now
    if now > w.tidied_us + DRIPS_KEPT_US then tidy(w, now) end
    return w
  end

  -- ask: how many jobs have left some nodes since they are counted, in their order. From now on they are.
  function trace.ask(m, ids, now)
    local w, counts = watched(m, now), {}
    for i, id in ipairs(ids) do
      if not w.counts[id] and w.size < MOST then w.counts[id], w.size = 0, w.size + 1 end
      counts[i] = w.counts[id] or 0
      if w.counts[id] then w.by[id] = now end
    end
    return counts
  end

  -- ask_drips: the dispatches of a bucket that are remembered, the oldest first: due and left in turns, and how many jobs have left since
  -- they are remembered. From now on they are; nil where those of too many others are.
  function trace.ask_dispatches(m, name, now)
    local w = watched(m, now)
    w.drips = w.drips or {}
    local d, list = w.drips[name], {}
    if not d then
      if w.dripping >= DRIPS_MOST then return nil end
      d = { n = 0 }
      w.drips[name], w.dripping = d, w.dripping + 1
    end
    d.asked_us, w.drips_asked_us = now, now
    for i = max(0, d.n - DRIPS), d.n - 1 do
      local at, n = 2 * (i % DRIPS), #list
      list[n + 1], list[n + 2] = d[at + 1], d[at + 2]
    end
    return list, d.n
  end
end
