-- needs: base, base.keys, base.names
-- Partitions: the partition of a name, and the numbers by which settings are replicated from one partition to the
-- others.
--
-- The record says how a system is partitioned: `cut` = { partitions, partition_by }. The tag of a name is its first
-- `partition_by` parts, split at ':', or with 0 the whole name. The partition of a name is the key slot of its tag, as
-- Redis Cluster computes it, modulo the number of partitions. (src/model/partitioning.rs computes the same.)
--
-- Partition 0 is the authority. It numbers each change of the record and of settings: the field `number` of its policy
-- key has the number of the last change. A number is higher than the one before, and no lower than the time, so that
-- the number of a change that was lost with a server is not used again. These keys have the number of the last change
-- of each subject:
-- <prefix>:changed  zset  subject -> the number of its last change: a name, a budget in braces, or RECORD or GLOBS
-- <prefix>:unset    zset  the same for names that have no settings any more, about the last UNSET_MOST of them; the
--                   field `floor` of the policy key is the highest number that was dropped
-- Every other partition has in `number` the last change up to which it has all, and takes only newer changes
-- (control/copies). Where another server counts than before (it was a replica, or lost a part of its file), it may lack
-- the last changes, which other partitions have. Then `floor` is the number of the first change that it counts. A
-- partition with a lower number begins anew, and changes that the authority does not have are undone there
-- (src/store/replication.rs).
-- A server that was a replica for a while counts as another one, even where it counted the last number itself: a server
-- gets another replication id whenever it becomes a primary. It also gets one when its first replica comes, and an hour
-- after the last one left. Then the others begin anew without need, which does no harm.

local partition = {}
do
  local SLOTS = 16384
  local REMEMBERED = 10000 -- names whose partition is remembered
  local UNSET_MOST, UNSET_DROP = 10000, 1000

  partition.RECORD, partition.GLOBS = '{record', '{globs' -- no name and no budget is written so

  local bxor, band, lshift, crc

  -- make_table: the table that `slot` adds for each byte. Only a partitioned system needs it.
  local function make_table()
    bxor, band, lshift, crc = bit.bxor, bit.band, bit.lshift, {}
    for n = 0, 255 do
      local sum = lshift(n, 8)
      for _ = 1, 8 do
        sum = band(sum, 0x8000) ~= 0 and band(bxor(lshift(sum, 1), 0x1021), 0xFFFF) or band(lshift(sum, 1), 0xFFFF)
      end
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

  local known, known_count = {}, 0 -- by partitioning and name

  -- number_of: the number of the partition of a name.
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

  -- text_of: the partitioning of a system, as clients read it from the field `cut` of its policy keys. cut_in: the
  -- same, decoded.
  function partition.text_of(cut)
    return cut.partitions .. ' ' .. cut.partition_by
  end

  local function cut_in(text)
    local partitions, by = match(text or '', '^(%d+) (%d+)$')
    return partitions and { partitions = partitions + 0, partition_by = by + 0 }
  end

  -- matches: whether a record may be stored in a space: a partitioned one only in one of its partitions.
  function partition.matches(k, cut)
    local number = tonumber(k.tag and sub(k.tag, 2, -2) or nil)
    return not cut or number ~= nil and number < cut.partitions
  end

  -- lives_here: whether a name belongs to a space. (Tests use partitions without a record.)
  function partition.lives_here(k, cut, name)
    return not cut or k.tag == '{' .. number_of(cut, name) .. '}'
  end

  -- elsewhere: why a push to a bucket does not belong here, or nil. A space without a record may be a partition: then
  -- the authority has the partitioning, if it is on this server.
  -- cost    nothing, or where no record is stored one call
  function partition.elsewhere(ctx, name)
    local k, cut = ctx.k, (ctx.rec.base or ctx.rec).cut
    if not ctx.id then
      local reply = pcall_redis('HGET', keys.of_partition(k, 0).policy, 'cut')
      cut = type(reply) == 'string' and cut_in(reply) or nil
    end
    if partition.lives_here(k, cut, name) then return nil end
    return 'it lives in another partition: push to ' .. keys.of_partition(k, number_of(cut, name)).queues .. name
  end

  -- not_opened: the refusal of a call whose context raised an error. A key without a tag in a cluster gets a text of
  -- its own: no other key of its space can be reached. Otherwise the error is raised again.
  function partition.not_opened(err, name)
    local text = base.message_of(err)
    if not (find(text, 'same slot', 1, true) or find(text, 'non local key', 1, true)) then
      error(err, 0)
    end
    return base.refuse(
      'BADBUCKET',
      name .. ' is not taken here: in a cluster the key of a queue has a tag; `dripd partition --key` prints it'
    )
  end

  -- is_migrating: whether the slot of a key is moving to another server. Keys move one by one, and a function that used
  -- a key that is gone would raise half-way. A command with two keys that never exist is refused on both servers;
  -- nothing else shows it. Keys without a tag are never moving: they are on a single server.
  -- cost    1 call where the key has a tag, else none (the caller looks for a brace before it asks)
  function partition.is_migrating(key)
    local _, to = find(key, ':{%d+}')
    if not to then return false end
    local never = sub(key, 1, to) .. ':{moves}'
    local err = base.is_error(pcall_redis('EXISTS', never .. '1', never .. '2'))
    return err ~= nil and not base.is_refused(err)
  end

  -- By policy key, the number that this server counted last and the replication id that it had then. They are lost with
  -- the memory of the server.
  local counted, counted_of = {}, 0

  -- replication_id: the id of this server's data; '' where the caller may not ask.
  local function replication_id()
    local reply = pcall_redis('INFO', 'replication')
    return type(reply) == 'string' and match(reply, 'master_replid:(%x+)') or ''
  end

  -- counts_on: this server counts a number after `last`. Replies whether it also counted `last`, and has been the
  -- primary since.
  local function counts_on(k, last, number)
    local before, id = counted[k.policy], replication_id()
    if not before then
      if counted_of >= 256 then counted, counted_of = {}, 0 end
      counted_of = counted_of + 1
    end
    counted[k.policy] = { number = number, replication_id = id }
    return before ~= nil and before.number == last and before.replication_id == id
  end

  -- changed: the authority counts a change of the settings of a name, or of RECORD or GLOBS; is_gone: no setting is
  -- left.
  -- writes   at the authority the policy key, changed, unset      cost  5 calls there
  function partition.changed(k, what, is_gone)
    if k.tag ~= '{0}' then return end
    local last = call('HGET', k.policy, 'number')
    local number = base.digits(max(base.clock(), tonumber(last or 0) + 1))
    call('HSET', k.policy, 'number', number)
    -- Another server counted `last`, or none did.
    if not counts_on(k, last, number) then call('HSET', k.policy, 'floor', number) end
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
