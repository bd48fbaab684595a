-- needs: base
-- Trace: how many jobs have left the buckets, or passed through the budgets, that somebody looks at now (`dripd top`).
-- Only those nodes are counted, in the memory of this server alone. Where nobody looks it costs a dispatch one
-- comparison.
--
-- For a bucket whose page is open (the dashboard) the last dispatches are remembered too: when each job was due, and
-- when it left.

local trace = {}
do
  -- A node that nobody has asked for in so long is not counted any more; Prometheus asks once a minute by default.
  local KEPT_US = 150000000
  local DISPATCHES_KEPT_US = 30000000
  local MOST = 2000 -- nodes that are counted, of one space
  local DISPATCHES_MOST = 64 -- buckets whose dispatches are remembered
  local DISPATCHES = 100 -- dispatches of each

  -- of: what is counted now, node -> jobs; nil where nobody looks.
  function trace.of(m, now)
    local w = m.watched
    if not w then return nil end
    if now > w.asked_us + KEPT_US or now < w.asked_us - KEPT_US then m.watched = nil end
    if w.dispatches and now > w.dispatches_asked_us + DISPATCHES_KEPT_US then
      w.dispatches, w.dispatches_count = nil, 0
    end
    return m.watched and w.counts
  end

  -- note: so many jobs have left a node.
  function trace.note(counts, id, n)
    if counts[id] then counts[id] = counts[id] + n end
  end

  -- dispatches_of: the remembered dispatches, bucket -> its own; nil where nobody asks for any.
  function trace.dispatches_of(m)
    local w = m.watched
    return w and w.dispatches
  end

  -- dispatched: a job has left a bucket: remember that in place of the oldest dispatch.
  function trace.dispatched(dispatches, name, due, now)
    local d = dispatches[name]
    if not d then return end
    local at = 2 * (d.n % DISPATCHES)
    d[at + 1], d[at + 2], d.n = due, now, d.n + 1
  end

  -- tidy: forget the nodes that nobody has asked for lately.
  local function tidy(w, now)
    for id, asked_us in pairs(w.by) do
      if now > asked_us + KEPT_US then w.by[id], w.counts[id], w.size = nil, nil, w.size - 1 end
    end
    for id, d in pairs(w.dispatches or {}) do
      if now > d.asked_us + DISPATCHES_KEPT_US then
        w.dispatches[id], w.dispatches_count = nil, w.dispatches_count - 1
      end
    end
    if w.dispatches_count == 0 then w.dispatches = nil end
    w.tidied_us = now
  end

  -- watched: what is counted; it is begun where nobody looked so far.
  local function watched(m, now)
    trace.of(m, now)
    local w = m.watched
    if not w then
      w = {
        counts = {},
        by = {},
        size = 0,
        dispatches_count = 0,
        asked_us = now,
        dispatches_asked_us = now,
        tidied_us = now,
      }
      m.watched = w
    end
    w.asked_us = now
    if now > w.tidied_us + DISPATCHES_KEPT_US then tidy(w, now) end
    return w
  end

  -- ask: how many jobs have left some nodes since they are counted, in their order. Nodes that are not counted yet are
  -- counted from now on.
  function trace.ask(m, ids, now)
    local w, counts = watched(m, now), {}
    for i, id in ipairs(ids) do
      if not w.counts[id] and w.size < MOST then w.counts[id], w.size = 0, w.size + 1 end
      counts[i] = w.counts[id] or 0
      if w.counts[id] then w.by[id] = now end
    end
    return counts
  end

  -- ask_dispatches: the remembered dispatches of a bucket, oldest first: due and left by turns, and how many jobs have
  -- left since dispatches are remembered; nil where those of too many other buckets are remembered. They are remembered
  -- from the first call on.
  function trace.ask_dispatches(m, name, now)
    local w = watched(m, now)
    w.dispatches = w.dispatches or {}
    local d, list = w.dispatches[name], {}
    if not d then
      if w.dispatches_count >= DISPATCHES_MOST then return nil end
      d = { n = 0 }
      w.dispatches[name], w.dispatches_count = d, w.dispatches_count + 1
    end
    d.asked_us, w.dispatches_asked_us = now, now
    for i = max(0, d.n - DISPATCHES), d.n - 1 do
      local at, n = 2 * (i % DISPATCHES), #list
      list[n + 1], list[n + 2] = d[at + 1], d[at + 2]
    end
    return list, d.n
  end
end
