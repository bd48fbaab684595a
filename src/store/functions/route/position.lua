-- needs: base, base.names
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

  local function new(id, read, stored) return { id = id, read = read, skipped = {}, stored = stored } end

  local function text_of(id, read) return run_id() .. ' ' .. id .. ' ' .. (read and digits(read) or '-') end

  -- made: the group of a stream was made: of a new one, or (`read` is false) of one with entries.
  function position.made(k, route_name, read)
    call('HSET', k.policy, field_of(route_name), text_of('0-0', read))
  end

  -- of: the position of a route at the last pass, or at a later look; at first 0-0, with nothing known.
  -- reads   the policy key      cost  1 call
  function position.of(ctx, route_name)
    local all, text = ctx.memory.positions, call('HGET', ctx.k.policy, field_of(route_name))
    local by, id, read = match(text or '', '^(%x+) (%d+%-%d+) ([%d-]+)$')
    local is_of_this = by ~= nil and by == run_id()
    if not all[route_name] or not is_of_this then
      all[route_name] = new(id or '0-0', is_of_this and tonumber(read) or false, text)
    end
    return all[route_name]
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

  -- By stream: the newest of the entries that dripd deleted, in this process.
  local deleted, deleted_count = {}, 0
  local STREAMS_MOST = 10000

  -- delete: delete entries that are finished. Replies how many there were.
  function position.delete(stream, ids)
    local n, newest = call('XDEL', stream, unpack(ids)), deleted[stream]
    if n == 0 then return 0 end
    if not newest then
      if deleted_count >= STREAMS_MOST then deleted, deleted_count = {}, 0 end
      newest, deleted_count = ids[1], deleted_count + 1
    end
    for _, id in ipairs(ids) do
      local is_newer = #id == #newest and id > newest or #id ~= #newest and names.is_after(id, newest)
      if is_newer then newest = id end
    end
    deleted[stream] = newest
    return n
  end

  -- may_have_lost_entries: whether the count of a group may be gone because somebody else deleted an entry that it had
  -- not read, after the entry `id`.
  local function may_have_lost_entries(stream, id)
    local newest = base.by_name(call('XINFO', 'STREAM', stream))['max-deleted-entry-id']
    return newest and newest ~= deleted[stream] and names.is_after(newest, id)
  end

  -- see: compare a position with what Redis says of the group. `newest`: the newest entry of the stream, where the
  -- group is set to an id after it.
  function position.see(p, stream, group, newest)
    local id, read = group['last-delivered-id'], group['entries-read'] or false
    local has_fallen = p.read and read and read < p.read
    if names.is_after(id, p.id) then
      local is_moved = newest or has_fallen or p.read and not read and not may_have_lost_entries(stream, p.id)
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
    p.read = read
  end

  -- glance: the same by a call that only looks at the route, between two passes. A count that has fallen says nothing
  -- here: this server may have been a replica since the last pass. Replies the position.
  function position.glance(ctx, route_name, stream, group)
    local p, read = ctx.memory.positions[route_name] or position.of(ctx, route_name), group['entries-read'] or false
    if not (p.read and read and read < p.read) then position.see(p, stream, group) end
    return p
  end
end
