-- needs: base, base.keys, base.names
-- Positions: how far the group `workers` of a ready stream has come, to notice where somebody moved it with XGROUP
-- SETID past jobs that no worker has read.
--
-- Redis counts what a group has read. A read adds to that count. XGROUP SETID forgets it, and Redis finds it again when
-- the group reads the newest entry. So a group was moved if its count is gone, or has fallen: only its own figures
-- tell, never those of the whole server. Only what it passed since it was seen last can be skipped: that is looked at
-- by the reaper (jobs/reap). What lies before was delivered, wherever the group is set to later. The count is also gone
-- where somebody else deleted an entry that no worker had read: then nothing tells whether the group was moved, and
-- nothing is taken back, because a job must not run twice.
--
-- A position, `p`, is remembered by route. Calls that look at a route see it (route/room), at most every 100 ms where
-- jobs leave, and each pass of the reaper. After a pass it is also stored in the policy key: a library that is loaded
-- remembers nothing. What another process has counted says nothing here, so the id of the process stands beside it.
--   id       the last entry that is known to be delivered
--   read     how many entries the group has read; false where that is not known
--   skipped  { from, to }: what the group passed when it was moved, after `from` and up to `to`, and is not looked at
--   yet
--   seen     what was seen then: the room of the route and how many jobs that had sent, the length of the stream, and
--   how many entries dripd had deleted
--   has_lost  somebody else deleted entries since Redis last knew how many the group has not read
--   stored   the text that is stored

local position = {}
do
  local is_error, digits = base.is_error, base.digits

  local SKIPPED_MOST = 16 -- moves that are kept apart; after that the last one is extended

  -- run_id: the id of this server process; '' where the caller may not ask.
  local run
  local function run_id()
    if not run or run == '' then
      local figures = pcall_redis('INFO', 'server')
      run = not is_error(figures) and match(figures, 'run_id:(%x+)') or ''
    end
    return run
  end

  local function field_of(route_name) return 'group:' .. route_name end

  -- By stream: `deleted`, how many entries dripd deleted in this process since the library was loaded, and `made`, how
  -- many those were when it made the stream, where it did.
  local counts, streams = {}, 0
  local STREAMS_MOST = 10000

  local function counts_of(stream)
    local of = counts[stream]
    if not of then
      if streams >= STREAMS_MOST then counts, streams = {}, 0 end
      of, streams = { deleted = 0 }, streams + 1
      counts[stream] = of
    end
    return of
  end

  -- note_deleted: so many entries of a stream were deleted, all of them finished. Replies that number.
  function position.note_deleted(stream, n)
    local of = counts_of(stream)
    of.deleted = of.deleted + n
    return n
  end

  -- delete: delete finished entries. Replies how many there were.
  function position.delete(stream, ids) return position.note_deleted(stream, call('XDEL', stream, unpack(ids))) end

  local function text_of(id, read) return run_id() .. ' ' .. id .. ' ' .. (read and digits(read) or '-') end

  -- made: the group of a stream was made: of a new one, or (`read` is false) of one with entries.
  function position.made(k, route_name, stream, read)
    if read then counts_of(stream).made = counts_of(stream).deleted end
    call('HSET', k.policy, field_of(route_name), text_of('0-0', read))
  end

  -- of: the position of a route at the last pass, or at a later look; at first 0-0, with nothing known. Where another
  -- one is stored than this memory has stored, the group was made anew.
  -- reads   the policy key      cost  1 call
  function position.of(ctx, route_name)
    local all, text = ctx.memory.positions, call('HGET', ctx.k.policy, field_of(route_name)) or nil
    local by, id, read = match(text or '', '^(%x+) (%d+%-%d+) ([%d-]+)$')
    local is_of_this, p = by ~= nil and by == run_id(), all[route_name]
    if not p or not is_of_this or p.stored ~= text then
      p = { id = id or '0-0', read = is_of_this and tonumber(read) or false, skipped = {}, stored = text }
      local made = counts_of(keys.ready(ctx.space, route_name)).made
      if p.read == 0 and made then
        p.seen = { room = ctx.memory.rooms[route_name], sent = 0, length = 0, deleted = made }
      end
      all[route_name] = p
    end
    return p
  end

  -- forget: the route is gone (`is_gone`), or its group was made anew.
  function position.forget(ctx, route_name, is_gone)
    ctx.memory.positions[route_name] = nil
    if is_gone then call('HDEL', ctx.k.policy, field_of(route_name)) end
  end

  -- store: everything up to this position is looked at.
  -- writes  the policy key      cost  1 call where it changed
  function position.store(ctx, route_name, p)
    local text = text_of(p.id, p.read)
    if text == p.stored then return end
    call('HSET', ctx.k.policy, field_of(route_name), text)
    p.stored = text
  end

  -- missing_since: how many entries of a stream of this length somebody else has deleted since it was seen last.
  -- Replies nil where that is not known, because the library was loaded since, or the route sends elsewhere.
  local function missing_since(ctx, p, route_name, stream, length)
    local seen, r = p.seen, ctx.memory.rooms[route_name]
    if not seen or seen.room ~= r then return nil end
    return seen.length + (r and r.sent - seen.sent or 0) - (counts_of(stream).deleted - seen.deleted) - length
  end

  -- shows_move: whether a count that is gone shows that the group was moved. It is also gone where somebody deleted an
  -- entry that the group had not read.
  local function shows_move(p, stream, group, missing)
    if missing then return not p.has_lost end
    local newest = base.by_name(call('XINFO', 'STREAM', stream))['max-deleted-entry-id']
    return not names.is_after(newest, group['last-delivered-id'])
  end

  -- see: compare a position with what Redis says of the group and of its stream of this length. `newest`: the newest
  -- entry of the stream, where the group is set to an id after it.
  function position.see(ctx, p, route_name, stream, group, length, newest)
    local id, read = group['last-delivered-id'], group['entries-read'] or false
    local has_fallen, missing = p.read and read and read < p.read, missing_since(ctx, p, route_name, stream, length)
    if missing and missing > 0 then p.has_lost = true end
    if names.is_after(id, p.id) then
      local is_moved = newest or has_fallen or p.read and not read and shows_move(p, stream, group, missing)
      local last = p.skipped[#p.skipped]
      if is_moved and #p.skipped >= SKIPPED_MOST then
        last.to = id
      elseif is_moved then
        p.skipped[#p.skipped + 1] = { from = p.id, to = id }
      end
      p.id = newest or id
    elseif has_fallen and id ~= p.id then
      p.id = id -- a new group, which delivers everything once more
    end
    if read and group.lag then p.has_lost = false end
    local r = ctx.memory.rooms[route_name]
    p.read, p.seen = read, { room = r, sent = r and r.sent, length = length, deleted = counts_of(stream).deleted }
  end

  -- is_of_future: whether a group is set to an id from after now: it may be one that the stream has not reached.
  function position.is_of_future(group)
    return match(group['last-delivered-id'], '^%d+') * 1000 > base.clock('')
  end

  -- glance: the same by a call that only looks at the route, between two passes. A count that has fallen says nothing
  -- here: this server may have been a replica since the last pass. What is set to an id of the future waits for a pass,
  -- which knows the newest entry. Replies the position.
  function position.glance(ctx, route_name, stream, group, length)
    local p, read = ctx.memory.positions[route_name] or position.of(ctx, route_name), group['entries-read'] or false
    local waits_for_pass = p.read and read and read < p.read
      or group['last-delivered-id'] ~= p.id and position.is_of_future(group)
    if not waits_for_pass then position.see(ctx, p, route_name, stream, group, length) end
    return p
  end
end
