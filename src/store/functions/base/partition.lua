-- needs: base, base.keys, base.names
-- Partitions: in which of them a name lives, and the numbers by which what is set in one is carried into the others.
--
-- A system is cut as its record says: `cut` = { partitions, partition_by }. The partition of a name is the key slot of its tag, as Redis
-- Cluster reckons it, modulo the number of partitions; the tag is the first `partition_by` parts of the name, split at ':', or, with 0, all
-- of it. (src/words/cut.rs reckons the same.)
--
-- Partition 0 is the authority. It numbers each change of the record and of what is set: the field `number` of its policy key is that of the
-- last one. A number is higher than the one before, and no lower than the time: so that of a change that was lost with a server does not
-- come again. These tell which change was the last of what:
-- <prefix>:changed  zset  what is set -> the number of its last change: a name or, in braces, a budget; RECORD and GLOBS stand for those
-- <prefix>:unset    zset  the same of names for which nothing is set any more, the last UNSET_MOST or so of them; the field `floor` is the
--                         highest number that was dropped
-- Every other partition has in `number` up to which change it has all of them, and takes only what is newer (control/copies). Where the server
-- that counts is another one than the one that counted before, it may lack the last changes, which others have: it was a replica, or lost
-- some of its file. Then `floor` is the number of the first change that it counts. Whoever has less begins anew, and what it
-- has beyond the authority is taken back (src/store/copy.rs). A server that was a replica for a while is another one too, though the last
-- number that it has may be one that it counted itself: whenever it becomes a primary it gets another replication id. It also gets one when its
-- first replica comes, and an hour after the last one went: then the others begin anew for nothing, which does no harm.

local partition = {}
do
  local SLOTS = 16384
  local REMEMBERED = 10000 -- names whose partition is remembered
  local UNSET_MOST, UNSET_DROP = 10000, 1000

  partition.RECORD, partition.GLOBS = '{record', '{globs' -- no name and no budget is written so

  local bxor, band, lshift, crc

  -- make_table: what `slot` adds for each byte. Only a system that is cut ever needs it.
  local function make_table()
    bxor, band, lshift, crc = bit.bxor, bit.band, bit.lshift, {}
    for n = 0, 255 do
      local sum = lshift(n, 8)
      for _ = 1, 8 do sum = band(sum, 0x8000) ~= 0 and band(bxor(lshift(sum, 1), 0x1021), 0xFFFF) or band(lshift(sum, 1), 0xFFFF) end
      crc[n] = sum
    end
  end

  -- slot: the key slot of a tag: its CRC16 (XMODEM), modulo the number of slots.
  local function slot(tag)
    if not crc then make_table() end
    local sum = 0
    for i = 1, #tag do sum = bxor(band(lshift(sum, 8), 0xFFFF), crc[bxor(floor(sum / 256), byte(tag, i))]) end
    return sum % SLOTS
  end

  local known, known_count = {}, 0 -- by how it is cut and by name

  -- number_of: the number of the partition in which a name lives.
  local function number_of(cut, name)
    local id = cut.partitions .. ' ' .. cut.partition_by .. ' ' .. name
    local number = known[id]
    if not number then
      if known_count >= REMEMBERED then known, known_count = {}, 0 end
      number = slot(names.tag_of(name, cut.partition_by)) % cut.partitions
      known[id], known_count = number, known_count + 1
    end
    return number
  end

  -- text_of: how a system is cut, as the field `cut` of its policy keys tells those who connect; cut_in: the same, read.
  function partition.text_of(cut)
    return cut.partitions .. ' ' .. cut.partition_by
  end

  local function cut_in(text)
    local partitions, by = match(text or '', '^(%d+) (%d+)$')
    return partitions and { partitions = partitions + 0, partition_by = by + 0 }
  end

  -- suits: whether a record may be stored in a space: one that is cut only in one of its partitions.
  function partition.suits(k, cut)
    local number = tonumber(k.tag and sub(k.tag, 2, -2) or nil)
    return not cut or number ~= nil and number < cut.partitions
  end

  -- lives_here: whether a name lives in a space. The tests of the functions know partitions of which no record tells.
  function partition.lives_here(k, cut, name)
    return not cut or k.tag == '{' .. number_of(cut, name) .. '}'
  end

  -- elsewhere: why a push of a bucket does not belong here, or nil. A space without a record may be one of a system that is cut: then the
  -- authority tells, if it is on this server.
  -- cost    nothing, or where no record is stored one call
  function partition.elsewhere(ctx, name)
    local k, cut = ctx.k, (ctx.rec.base or ctx.rec).cut
    if not ctx.id then
      local told = pcall_redis('HGET', keys.of_partition(k, 0).policy, 'cut')
      cut = type(told) == 'string' and cut_in(told) or nil
    end
    if partition.lives_here(k, cut, name) then return nil end
    return 'it lives in another partition: push to ' .. keys.of_partition(k, number_of(cut, name)).queues .. name
  end

  -- not_opened: the refusal of a call whose context raised an error: of a key without a tag in a cluster, where nothing else of its space can
  -- be reached; else what was raised. (Redis' pcall replies it as text, with its code.)
  function partition.not_opened(err, name)
    local text = type(err) == 'table' and err.err or tostring(err)
    if not (find(text, 'same slot', 1, true) or find(text, 'non local key', 1, true)) then return redis.error_reply(text) end
    return base.refuse('BADBUCKET', name .. ' is not taken here: in a cluster the key of a queue has a tag; `dripd partition --key` prints it')
  end

  -- stands_still: whether the slot of a key is on the move to another server. Keys move one by one, and a function that touched one that is
  -- not there any more would raise in its middle. A command with two keys that never exist is refused on both sides, and nothing else tells.
  -- Keys without a tag are never on the move: they are on a server by itself.
  -- cost    1 call where the key has a tag, else none (and whoever asks for each call looks for a brace first)
  function partition.stands_still(key)
    local _, to = find(key, ':{%d+}')
    if not to then return false end
    local never = sub(key, 1, to) .. ':{moves}'
    local err = base.is_error(pcall_redis('EXISTS', never .. '1', never .. '2'))
    return err ~= nil and not base.is_refused(err)
  end

  -- The number that this server counted last and the replication id that it had then, by policy key. A prefix has one, and the memory of a
  -- server ends with it.
  local counted, counted_of = {}, 0

  -- replication_id: that of the data of this server; '' where the caller may not ask.
  local function replication_id()
    local told = pcall_redis('INFO', 'replication')
    return type(told) == 'string' and match(told, 'master_replid:(%x+)') or ''
  end

  -- counts_on: this server counts a number after `last`. Replies whether it counted that too, and was the primary ever since.
  local function counts_on(k, last, number)
    local before, id = counted[k.policy], replication_id()
    if not before then
      if counted_of >= 256 then counted, counted_of = {}, 0 end
      counted_of = counted_of + 1
    end
    counted[k.policy] = { number = number, replication_id = id }
    return before ~= nil and before.number == last and before.replication_id == id
  end

  -- changed: the authority counts a change of what is set for a name, or of RECORD or GLOBS; is_gone: nothing is set any more.
  -- writes   at the authority the policy key, changed, unset      cost  5 calls there
  function partition.changed(k, what, is_gone)
    if k.tag ~= '{0}' then return end
    local last = call('HGET', k.policy, 'number')
    local number = base.digits(max(base.clock(), tonumber(last or 0) + 1))
    call('HSET', k.policy, 'number', number)
    if not counts_on(k, last, number) then call('HSET', k.policy, 'floor', number) end -- somebody else counted that, or nobody
    local from, to = k.unset, k.changed
    if is_gone then from, to = to, from end
    call('ZREM', from, what)
    call('ZADD', to, number, what)
    if is_gone and call('ZCARD', k.unset) > UNSET_MOST then
      local dropped = call('ZPOPMIN', k.unset, UNSET_DROP)
      local floor_was = tonumber(call('HGET', k.policy, 'floor') or '0')
      if dropped[#dropped] + 0 > floor_was then call('HSET', k.policy, 'floor', dropped[#dropped]) end
    end
  end
end
