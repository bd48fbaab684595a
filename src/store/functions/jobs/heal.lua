-- needs: base, base.keys, base.names, context, jobs.release, limits.slots, policy.chain, policy.record, route, state,
--   state.line, state.waiting, tree.budget
-- Heal: free slots of entries that are no longer in flight and that nobody freed: a worker used a plain XACK, or
-- somebody deleted the entry. The daemons call it again and again; each call looks at a part of the lines. The position
-- is in the memory of this server, so several daemons together do no more work than one.
--
-- A pass begins PASS_US after the last one began, and later with more lines: a slot is free within a second, plus a
-- second for each 20,000 lines, and at most some ten thousand lines are read in a second. A pass looks whether each
-- entry is undelivered or pending. A `thorough` pass also checks
--   lines     that the entry is still in its stream, for which its job must be read; that its members exist; and that
--             each of its budgets that waits for a slot is blocked
--   members   that each has its line
--   full      that no blocked node has a free slot
--   budgets   that each budget with work is in the set of its state
--   waiting   that each node that is queued or held is in its set, and that the budget or the route knows it
-- Where a line or a member is lost, it is restored from the other as long as the entry is in flight. A node that the
-- hash `budgets` or `waiting` knows and no set has would stand still for good: its set was deleted, or it was written
-- by two servers.

local heal = {}
do
  local is_error = base.is_error
  local note = context.note

  local PAGE = 200 -- lines that a call looks at, about
  local PASS_US = 750000 -- the time between the beginnings of two passes, and once more for each
  local PASS_LINES = 20000 -- so many lines
  -- The time between two thorough passes, which take some three times as long; once more for each PASS_LINES lines.
  local THOROUGH_US = 10000000
  local THOROUGH_MOST_US = 40000000 -- but no more than this

  -- group_of: how far a route's entries have been delivered; false where its stream is gone. Where somebody destroyed
  -- the group, a new one delivers all entries once more.
  local function group_of(ctx, at_groups, name)
    local g = at_groups[name]
    if g == nil then
      local stream = keys.ready(ctx.space, name)
      g = not is_error(pcall_redis('XLEN', stream)) and call('EXISTS', stream) == 1 and { stream = stream }
      if g then
        local group = route.group_of(stream)
        if not group then route.make(ctx.space, name) end
        g.delivered = group and group['last-delivered-id'] or '0-0'
      end
      at_groups[name] = g
    end
    return g
  end

  -- is_there: whether an entry is still in its stream.
  local function is_there(ctx, stream, id)
    local found = call('XRANGE', stream, id, id)[1]
    if not found then return false end
    for i = 2, #found[2], 2 do ctx.bytes = ctx.bytes + #found[2][i] end
    return true
  end

  -- in_flight: whether an entry is undelivered or pending. The other two replies are stream and id of a pending entry
  -- that was deleted.
  local function in_flight(ctx, pass, name)
    local route_name, id = slots.split(name)
    local group = route_name and group_of(ctx, pass.groups, route_name)
    if not group then return false end
    local delivered = not names.is_after(id, group.delivered)
    if delivered and not call('XPENDING', group.stream, 'workers', id, id, '1')[1] then return false end
    if not pass.at.thorough or is_there(ctx, group.stream, id) then return true end
    return false, delivered and group.stream, id
  end

  -- free: an entry is no longer in flight: free its slots.
  local function free(ctx, pass, name, vanished_from, id)
    pass.freed = pass.freed + 1
    for _, node in ipairs(slots.free(ctx, name)) do release.slot_freed(ctx, node) end
    if not vanished_from then return end
    call('XACK', vanished_from, 'workers', id) -- somebody deleted the pending entry: there is no job to take back
    note(ctx, 'vanished', vanished_from .. ' ' .. id)
  end

  local function is_node(id) return names.is_bucket(chain.bare(id)) end

  -- look_at_line: check the line of an entry that holds slots of these nodes.
  local function look_at_line(ctx, pass, name, line)
    local is_held, vanished_from, id = in_flight(ctx, pass, name)
    if not is_held then return free(ctx, pass, name, vanished_from, id) end
    if not pass.at.thorough then return end
    local good, members = {}, {}
    for _, node in ipairs(slots.nodes_of(line)) do
      if is_node(node) then
        good[#good + 1], members[#members + 1], members[#members + 2] = node, '0', slots.member(node, name)
        if chain.budget_of(node) and not pass.repaired[node] then
          pass.repaired[node] = true
          budget.repair(ctx, node)
        end
      end
    end
    if table.concat(good, '\n') ~= line then
      if good[1] then call('HSET', ctx.k.slots, name, table.concat(good, '\n')) else call('HDEL', ctx.k.slots, name) end
    end
    if members[1] then pcall_redis('ZADD', ctx.k.inflight, unpack(members)) end
  end

  -- look_at_budget: put a budget back that has work and is in no set.
  local function look_at_budget(ctx, _, id)
    if budget.repair(ctx, id) then ctx.earlier = true end
  end

  -- known_by: the budget or the route that a node waits for knows that, once a call.
  local function known_by(ctx, pass, set)
    if pass.repaired[set] then return end
    pass.repaired[set] = true
    local parent, name = waiting.parts(ctx, set)
    if not parent then return name ~= '' and route.hold(ctx, name) end
    if name ~= '' and budget.repair(ctx, parent, name) then ctx.earlier = true end
  end

  -- look_at_waiting: put a node back that is queued or held and is not in that set.
  local function look_at_waiting(ctx, pass, id, text)
    local set, due = waiting.decode(ctx, text)
    if chain.budget_of(id) then
      if budget.repair(ctx, id) then ctx.earlier = true end
    elseif not waiting.rank_of(ctx, set, id, due) then
      local of, name = waiting.parts(ctx, set)
      local p = record.policy_of(ctx.rec, id)
      local rank = of and p and budget.finish_of(budget.get(ctx, of), id, p) or line.finish_of(ctx, name, id, 1)
      waiting.join(ctx, set, id, due, rank)
      ctx.earlier = true
    end
    known_by(ctx, pass, set)
  end

  -- look_at_member: check a member of `inflight`: an entry that holds a slot of a node.
  local function look_at_member(ctx, pass, member, score)
    local node, name = slots.split_member(member)
    if not node or not is_node(node) then return call('ZREM', ctx.k.inflight, member) end
    if score ~= '0' then call('ZADD', ctx.k.inflight, '0', member) end
    -- Raises where the key holds something else: then nothing is compared.
    local line = call('HGET', ctx.k.slots, name) or ''
    if find('\n' .. line .. '\n', '\n' .. node .. '\n', 1, true) then return end
    if in_flight(ctx, pass, name) then
      call('HSET', ctx.k.slots, name, line == '' and node or line .. '\n' .. node)
    else
      slots.drop(ctx, member, node)
      release.slot_freed(ctx, node)
    end
  end

  local STEPS = {
    lines = { scan = 'HSCAN', key = 'slots', look = look_at_line, after = 'members' },
    members = { scan = 'ZSCAN', key = 'inflight', look = look_at_member, after = 'full' },
    full = { scan = 'ZSCAN', key = 'full', look = function(ctx, _, node) release.slot_freed(ctx, node) end,
      after = 'budgets' },
    budgets = { scan = 'HSCAN', key = 'budgets', look = look_at_budget, expect = budget.load, after = 'waiting' },
    waiting = { scan = 'HSCAN', key = 'waiting', look = look_at_waiting },
  }

  -- step: a part of a pass. What is left of a page when the call has no bytes left is kept for the next call. Replies
  -- whether the pass is over.
  local function step(ctx, pass)
    local at = pass.at
    local of = STEPS[at.phase]
    if not at.page[1] then
      local found = pcall_redis(of.scan, ctx.k[of.key], at.cursor, 'COUNT', PAGE)
      if is_error(found) then
        note(ctx, 'wrong-type', ctx.k[of.key], is_error(found))
        at.cursor, found = '0', { '0', {} }
        -- Nothing can be compared with it.
        if of.key == 'slots' then at.phase = at.thorough and 'budgets' return not at.phase end
      end
      at.cursor, at.page = found[1], found[2]
      if of.expect and found[2][1] then of.expect(ctx, base.names_in(found[2])) end
    end
    local page = at.page
    while page[1] and ctx.bytes < MIB do
      local value = table.remove(page)
      local name = table.remove(page)
      local ok, why = pcall(of.look, ctx, pass, name, value)
      if not ok then note(ctx, 'raised', ctx.k[of.key], base.message_of(why)) end
    end
    if page[1] or at.cursor ~= '0' then return false end
    at.phase = at.thorough and of.after
    return not at.phase
  end

  -- begin: the pass that is going on, or a new one if it is time for it; else nil and how long until then, in us.
  local function begin(ctx)
    local at, now = ctx.memory.heal, ctx.now
    if at and at.phase then return at end
    if at and now >= at.began_us then
      local next_us = at.began_us + PASS_US + PASS_US * at.lines / PASS_LINES
      if now < next_us then return nil, next_us - now end
    end
    local lines, thorough_us = pcall_redis('HLEN', ctx.k.slots), at and at.thorough_us or 0
    lines = is_error(lines) and 0 or lines
    local nodes = base.number(pcall_redis('HLEN', ctx.k.budgets)) + base.number(pcall_redis('HLEN', ctx.k.waiting))
    local every_us = min(THOROUGH_MOST_US, THOROUGH_US + THOROUGH_US * (lines + nodes) / PASS_LINES)
    -- Where members could not be counted, and now can: they are lost, and nodes wait for them.
    local is_mended = ctx.memory.is_uncountable and not is_error(pcall_redis('ZCARD', ctx.k.inflight))
    if is_mended then ctx.memory.is_uncountable = nil end
    local thorough = is_mended or now >= thorough_us + every_us or now < thorough_us
    at = {
      phase = 'lines', cursor = '0', page = {}, began_us = now, lines = lines, thorough = thorough,
      thorough_us = thorough and now or thorough_us,
    }
    ctx.memory.heal = at
    return at
  end

  -- is_needed: 1 where there is anything to look at, else 0.
  -- cost   1 call
  function heal.is_needed(k)
    return min(1, call('EXISTS', k.slots, k.inflight, k.full, k.budgets, k.waiting))
  end

  -- drip__heal: a part of a pass over the entries that hold slots, and over the nodes that wait.
  -- keys   <prefix>:policy
  -- args   now_us
  -- reply  { wait_ms until the next part (0 = call again, -1 = no entry holds a slot and no node waits), entries that
  --        held slots and were not in flight any more, notes { kind, subject, detail, count, ... } }
  -- cost   O(PAGE), and at most 1 MiB of jobs or one job
  function heal.heal(ctx)
    if heal.is_needed(ctx.k) == 0 then
      local before = ctx.memory.heal
      ctx.memory.heal = before and { began_us = before.began_us, lines = 0, thorough_us = before.thorough_us }
      return { -1, 0, {} }
    end
    local at, wait_us = begin(ctx)
    if not at then return { ceil(wait_us / 1000), 0, {} } end
    local pass = { at = at, groups = {}, repaired = {}, freed = 0 }
    ctx.earlier = false
    local is_over = step(ctx, pass)
    state.flush(ctx)
    if ctx.earlier then context.wake(ctx.k) end
    if is_over then at, wait_us = begin(ctx) end
    return { at and 0 or ceil(wait_us / 1000), pass.freed, context.notes_of(ctx) }
  end
end
