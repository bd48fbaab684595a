-- needs: base, base.keys, base.names, limits.slots, policy.chain, policy.record, route
-- Recount: a pass over what is in flight, a part in each call: entries get the slots of nodes whose limit is new
-- (limits/slots). Entries that left before the limit came have no line for it, so all streams are read once.

local recount = {}
do
  local is_error = base.is_error

  local ENTRIES = 500 -- entries that a call reads, about; and 1 MiB of them
  local AT_ONCE = 64 -- entries that are read at once, at most, while they are small
  local SMALL = 4096 -- bytes
  local PENDING = 1000 -- pending entries that one call of Redis replies

  local function routes_of(ctx)
    local list = pcall_redis('SMEMBERS', ctx.k.routes)
    return is_error(list) and {} or list
  end

  -- is_any_out: whether any ready stream has an entry.
  -- cost  1 call, and 1 a route
  function recount.is_any_out(ctx)
    for _, name in ipairs(routes_of(ctx)) do
      if base.number(pcall_redis('XLEN', keys.ready(ctx.space, name))) > 0 then return true end
    end
    return false
  end

  -- nodes_of: the bucket of an entry and the budgets above it, of which `is_new` holds.
  local function nodes_of(ctx, name, is_new)
    local found, id = {}, name
    for _ = 1, chain.LEVELS_MOST do
      local p = record.policy_of(ctx.rec, id)
      if p and p.concurrency and is_new(id) then found[#found + 1] = id end
      id = p and not p.refused and p.parent
      if not id then break end
    end
    return found
  end

  -- pending_in: which of the entries between two are pending.
  local function pending_in(stream, first, last)
    local held, from = {}, first
    while from do
      local rows = call('XPENDING', stream, 'workers', from, last, PENDING)
      for _, row in ipairs(rows) do held[row[1]] = true end
      from = rows[PENDING] and '(' .. rows[PENDING][1]
    end
    return held
  end

  -- add_slots: the entries of a page that are in flight get the slots of their nodes in `known`, by bucket.
  local function add_slots(ctx, route_name, stream, page, buckets, known)
    local group, held = route.group_of(stream), nil
    for i, entry in ipairs(page) do
      local id, nodes = entry[1], known[buckets[i]] or {}
      if nodes[1] then
        local is_out = not group or names.is_after(id, group['last-delivered-id'])
        if not is_out then
          held = held or pending_in(stream, page[1][1], page[#page][1])
          is_out = held[id]
        end
        for _, node in ipairs(is_out and nodes or {}) do slots.add(ctx, route_name, id, node) end
      end
    end
  end

  -- read_page: the next entries of a stream. Replies them, and the bucket of each.
  local function read_page(ctx, at, stream)
    local page = pcall_redis('XRANGE', stream, at.from, '+', 'COUNT', at.most)
    if is_error(page) then return {}, {} end
    local buckets, bytes = {}, 0
    for i, entry in ipairs(page) do
      local fields = base.by_name(entry[2])
      buckets[i], bytes = fields.bucket or '', bytes + #(fields.job or '')
    end
    at.read, ctx.bytes = at.read + #page, ctx.bytes + bytes
    return page, buckets, bytes
  end

  -- part: a part of a pass. `at` is the position, an empty table at its beginning; `is_new` says of a node whether its
  -- limit is new. Replies whether the pass is over.
  -- reads   ready streams and their groups      writes  slots, inflight      cost  O(ENTRIES), at most 1 MiB or one job
  function recount.part(ctx, at, is_new)
    at.routes = at.routes or routes_of(ctx)
    at.from, at.most, at.read = at.from or '-', at.most or 1, 0
    local known = {}
    while at.routes[1] and at.read < ENTRIES and ctx.bytes < MIB do
      local name = at.routes[1]
      local stream = keys.ready(ctx.space, name)
      local page, buckets, bytes = read_page(ctx, at, stream)
      for _, of in ipairs(buckets) do
        if not known[of] then known[of] = names.is_bucket(of) and nodes_of(ctx, of, is_new) or {} end
      end
      if page[1] then add_slots(ctx, name, stream, page, buckets, known) end
      if #page < at.most then
        table.remove(at.routes, 1)
        at.from, at.most = '-', 1
      else
        at.from = '(' .. page[#page][1]
        at.most = bytes < SMALL * at.most and min(AT_ONCE, at.most * 4) or 1
      end
    end
    return not at.routes[1]
  end

  -- begin: the policy of a node has changed in this call, `was` is the one before. Where its limit is new and few jobs
  -- are out they are counted at once; else it is marked, and drains count them (control/sweep).
  function recount.begin(ctx, id, was, p)
    local mark, bytes = slots.mark(ctx, id, was, p), ctx.bytes
    if not mark or not slots.can_take(ctx) then return end
    if recount.part(ctx, {}, function(node) return node == id end) then slots.unmark(ctx, { [id] = mark }) end
    ctx.bytes = bytes -- the node itself is still to be looked at in this call
  end
end
