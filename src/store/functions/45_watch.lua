-- Watch: how many jobs have left the buckets, or passed through the budgets, that somebody looks at just now (`dripd top`). Only what is
-- asked for is counted, in the memory of this server alone. Where nobody looks it costs a dispatch one comparison.

local watch = {}
do
  local KEPT_US = 30000000 -- what nobody has asked for this long is counted no more
  local MOST = 2000        -- nodes that are counted, of one prefix

  -- of: what is counted now, node -> jobs; nil where nobody looks.
  function watch.of(m, now)
    local w = m.watched
    if not w then return nil end
    if now > w.asked_us + KEPT_US or now < w.asked_us - KEPT_US then m.watched = nil end
    return m.watched and w.counts
  end

  -- note: so many jobs have left a node.
  function watch.note(counts, id, n)
    if counts[id] then counts[id] = counts[id] + n end
  end

  -- Forget the nodes that nobody has asked for lately.
  local function tidy(w, now)
    for id, asked_us in pairs(w.by) do
      if now > asked_us + KEPT_US then w.by[id], w.counts[id], w.size = nil, nil, w.size - 1 end
    end
    w.tidied_us = now
  end

  -- ask: how many jobs have left some nodes since they are counted, in their order. From now on they are.
  function watch.ask(m, ids, now)
    watch.of(m, now)
    local w, counts = m.watched, {}
    if not w then
      w = { counts = {}, by = {}, size = 0, asked_us = now, tidied_us = now }
      m.watched = w
    end
    w.asked_us = now
    if now > w.tidied_us + KEPT_US then tidy(w, now) end
    for i, id in ipairs(ids) do
      if not w.counts[id] and w.size < MOST then w.counts[id], w.size = 0, w.size + 1 end
      counts[i] = w.counts[id] or 0
      if w.counts[id] then w.by[id] = now end
    end
    return counts
  end
end
