-- needs: base, context, limits.constraint_store, policy.record
-- Slots: how many jobs of a node are in flight: dispatched and not finished.
--
-- <prefix>:slots has a line for each entry that holds slots: "<route> <entry id>" -> the ids of the nodes, one a line.
-- (An entry id alone is not unique among streams.) A step that takes an entry out of the pending list removes its line
-- first, and frees exactly these slots, whatever the policy says by then.
-- <prefix>:inflight has the same by node: "<node>\n<route> <entry id>", all with the score 0. The number of taken slots
-- of a node is the number of members that begin with it, so it cannot drift. Where one of the two loses something, it
-- is restored from the other (jobs/heal).
-- A node with work and without a free slot is in <prefix>:full.
--
-- Slots are taken only where there is a limit. Jobs that are out when a limit is added hold none: they get them by a
-- pass over what is in flight (limits/recount), and until it is over the node has no free slot (`is_counted`). A limit
-- that a rollout adds is counted before the rollout ends (control/sweep). A node whose own setting adds one is in
-- <prefix>:uncounted, with a mark that is another one each time; then `brakes` in the policy key has a `c`.

local slots = {}
do
  local NODE, BEHIND = '\n', '\11' -- what ends a node's id in a member, and the byte after that: a name has neither

  -- name_of: the name of an entry in these keys.
  local function name_of(route_name, entry) return route_name .. ' ' .. entry end
  slots.name_of = name_of

  -- split: route and entry id of such a name; nil where it is none.
  function slots.split(name) return match(name, '^([%w%._-]+) (%d+%-%d+)$') end

  -- member: the member for an entry of a node. split_member: the node and the name of its entry, or nil.
  function slots.member(id, name) return id .. NODE .. name end

  function slots.split_member(member) return match(member, '^([^\n]+)\n([%w%._-]+ %d+%-%d+)$') end

  -- count: how many slots of a node are taken; `huge` where that cannot be read.
  -- cost  1 call a node
  function slots.count(ctx, id)
    local known = ctx.inflight
    if not known then
      known = {}
      ctx.inflight = known
    end
    local n = known[id]
    if not n then
      n = pcall_redis('ZLEXCOUNT', ctx.k.inflight, '[' .. id .. NODE, '(' .. id .. BEHIND)
      if base.is_error(n) then
        context.note(ctx, 'wrong-type', ctx.k.inflight, base.is_error(n))
        n, ctx.memory.is_uncountable = huge, true
      end
      known[id] = n
    end
    return n
  end

  -- waits_for_retry: whether an `ordered` bucket waits for its failed job. A failed job whose back-off has ended, and
  -- that was announced (queue/retries), is the next to leave.
  local function waits_for_retry(ctx, name)
    local first = call('ZRANGE', ctx.k.retry .. name, '0', '0', 'WITHSCORES')[2]
    if not first or first + 0 > ctx.now then return first ~= nil end
    if ctx.announced and ctx.announced[name] then return false end
    local ends = tonumber(call('ZSCORE', ctx.k.retries, name) or nil)
    return ends ~= nil and ends < huge
  end

  -- mark: the limit of a node is new: `was` is its policy before. Replies its mark; nil where it had one.
  -- writes  uncounted, the policy key, where it had none      cost  at most 2 calls
  local marks = 0

  function slots.mark(ctx, id, was, p)
    if not p or not p.concurrency or was and was.concurrency then return nil end
    marks = marks + 1
    local mark = ctx.now_text .. '-' .. marks .. '-' .. context.server()
    call('HSET', ctx.k.uncounted, id, mark)
    if not ctx.has_uncounted then
      ctx.has_uncounted = true
      constraint_store.write_flags(ctx)
    end
    ctx.uncounted = false
    return mark
  end

  -- marked: a batch of the nodes with a new limit, and the mark of each.
  function slots.marked(ctx)
    return base.by_name(call('HSCAN', ctx.k.uncounted, '0', 'COUNT', ctx.limits.batch)[2])
  end

  -- unmark: the jobs of these nodes are counted, if they still have these marks. Replies those of which that is so.
  function slots.unmark(ctx, marks_of)
    local done = {}
    for id, mark in pairs(marks_of) do
      if call('HGET', ctx.k.uncounted, id) == mark then
        call('HDEL', ctx.k.uncounted, id)
        done[#done + 1] = id
      end
    end
    ctx.uncounted = false
    if call('EXISTS', ctx.k.uncounted) == 0 then
      ctx.has_uncounted = false
      constraint_store.write_flags(ctx)
    end
    return done
  end

  -- is_marked: whether the limit of a node is new by its own setting.
  local function is_marked(ctx, id)
    local known = ctx.uncounted
    if not known then
      known = {}
      ctx.uncounted = known
    end
    if known[id] == nil then known[id] = call('HGET', ctx.k.uncounted, id) ~= false end
    return known[id]
  end

  -- is_gained: whether a rollout that is going on adds the limit of a node.
  function slots.is_gained(ctx, id)
    local old = record.policy_of(ctx.old_rec, id)
    return not (old and old.concurrency)
  end

  -- is_counted: whether the jobs in flight of a node with a limit all count.
  -- cost  1 call a node, where a setting has added a limit lately; else none
  function slots.is_counted(ctx, id, p)
    if ctx.has_uncounted and is_marked(ctx, id) then return false end
    if p.over and not p.over.concurrency then return false end -- a setting has ended, and that is not applied yet
    if not ctx.old_rec or record.slots_text(ctx.rec) == record.slots_text(ctx.old_rec) then return true end
    return not slots.is_gained(ctx, id)
  end

  -- is_full: whether a node with this policy may let out no job until a slot is free, or until its failed job comes
  -- back (`is_back`: it does so now).
  function slots.is_full(ctx, id, p, is_back)
    if not p.concurrency then return false end
    if not slots.is_counted(ctx, id, p) then return true end
    return slots.count(ctx, id) >= p.concurrency or p.ordered and not is_back and waits_for_retry(ctx, id)
  end

  -- can_take: whether a line can be written. It is asked before a job leaves, because afterwards nothing may fail.
  function slots.can_take(ctx)
    if ctx.takes_slots == 'unknown' then
      local err = base.is_error(pcall_redis('HLEN', ctx.k.slots))
      ctx.takes_slots, ctx.slots_error = not err, err
    end
    if not ctx.takes_slots then -- each bucket is parked for that
      context.note(ctx, 'wrong-type', ctx.k.slots, ctx.slots_error)
    end
    return ctx.takes_slots
  end

  -- take: an entry holds a slot of each of these nodes.
  -- writes  slots, inflight      cost  2 calls
  function slots.take(ctx, route_name, entry, ids)
    if not ids[1] then return end
    local name, members, known = name_of(route_name, entry), {}, ctx.inflight or {}
    for i, id in ipairs(ids) do
      members[2 * i - 1], members[2 * i] = '0', id .. NODE .. name
      if known[id] then known[id] = known[id] + 1 end
    end
    call('HSET', ctx.k.slots, name, table.concat(ids, '\n'))
    call('ZADD', ctx.k.inflight, unpack(members))
  end

  -- add: an entry that may hold slots already holds one of this node too.
  -- writes  slots, inflight      cost  2 or 3 calls
  function slots.add(ctx, route_name, entry, id)
    local name, member = name_of(route_name, entry), nil
    local line = call('HGET', ctx.k.slots, name)
    for _, node in ipairs(line and slots.nodes_of(line) or {}) do member = member or node == id end
    if member then return end
    call('HSET', ctx.k.slots, name, line and line .. '\n' .. id or id)
    call('ZADD', ctx.k.inflight, '0', id .. NODE .. name)
    if ctx.inflight then ctx.inflight[id] = nil end
  end

  -- nodes_of: the nodes in a line.
  function slots.nodes_of(line)
    local ids = {}
    for id in gmatch(line, '[^\n]+') do ids[#ids + 1] = id end
    return ids
  end

  -- lines_of: the names and lines of those entries of a route that hold slots.
  function slots.lines_of(k, route_name, entries)
    local wanted, found, lines = {}, {}, {}
    for i, entry in ipairs(entries) do wanted[i] = name_of(route_name, entry) end
    local all = pcall_redis('HMGET', k.slots, unpack(wanted))
    if base.is_error(all) then return found, lines end
    for i, name in ipairs(wanted) do
      if all[i] then
        found[#found + 1], lines[#lines + 1] = name, all[i]
      end
    end
    return found, lines
  end

  -- remove: entries hold no slots any more. Replies the nodes whose slots they held.
  -- writes  slots, inflight      cost  2 calls
  function slots.remove(k, entries, lines)
    local members, nodes, seen = {}, {}, {}
    for i, name in ipairs(entries) do
      for _, id in ipairs(slots.nodes_of(lines[i])) do
        members[#members + 1] = id .. NODE .. name
        if not seen[id] then
          seen[id], nodes[#nodes + 1] = true, id
        end
      end
    end
    call('HDEL', k.slots, unpack(entries))
    base.write(pcall_redis, 'ZREM', k.inflight, members)
    return nodes
  end

  -- drop: remove a member of a node whose entry has no line and holds no slot.
  function slots.drop(ctx, member, id)
    call('ZREM', ctx.k.inflight, member)
    if ctx.inflight then ctx.inflight[id] = nil end
  end

  -- free: an entry (by its name here) is no longer in flight. Replies the nodes whose slots it held; none where it has
  -- no line.
  -- cost  1 call, and where it held slots 2
  function slots.free(ctx, name)
    local line = pcall_redis('HGET', ctx.k.slots, name)
    if type(line) ~= 'string' then return {} end -- no line, or the key holds something else
    local nodes = slots.remove(ctx.k, { name }, { line })
    for _, id in ipairs(ctx.inflight and nodes or {}) do ctx.inflight[id] = nil end
    return nodes
  end
end
