-- needs: base, base.keys, base.partition, context, control.change, control.policy, policy.chain
-- Copies: replication of the changes that the authority counted (base/partition). A daemon reads them with
-- drip__changed and stores them in the other partitions with drip__copy.

local copies = {}
do
  local refuse, integer = base.refuse, base.integer
  local RECORD, GLOBS = partition.RECORD, partition.GLOBS

  local MOST = 100 -- changes in one call

  -- texts_of: what is stored of a changed subject: three texts, '' where there is none.
  local function texts_of(k, what)
    if what == RECORD then
      local found = call('HMGET', k.policy, 'id', 'record', 'source')
      return found[1] or '', found[2] or '', found[3] or ''
    end
    if what == GLOBS then return call('GET', k.globs) or '', '', '' end
    return call('HGET', k.settings, what) or '', '', ''
  end

  -- drip__changed: the changes after a number, earliest first; at most 100, and none after 1 MiB was read.
  -- keys   <prefix>:policy of the authority
  -- args   now_us (not used), that number
  -- reply  { the number of the last change, the floor, the number up to which this reply has all changes, { number,
  --        subject, three texts, ... } }, numbers as texts
  -- errors BADARG
  -- cost   O(changes)
  function copies.changed(redis_keys, args)
    local space, after = keys.space_before(redis_keys[1], 'policy'), integer(args[2])
    if not space or not after then
      return refuse('BADARG', 'changed takes the policy key of the authority and a number')
    end
    local k, found, list, bytes = keys.of(space), {}, {}, 0
    for _, set in ipairs({ k.changed, k.unset }) do
      local page = call('ZRANGE', set, '(' .. after, '+inf', 'BYSCORE', 'LIMIT', '0', MOST, 'WITHSCORES')
      for i = 1, #page, 2 do found[#found + 1] = { what = page[i], number = page[i + 1] + 0 } end
    end
    table.sort(found, function(a, b) return a.number < b.number end)
    local head = call('HMGET', k.policy, 'number', 'floor')
    local upto = head[1] or '0'
    for i, one in ipairs(found) do
      if i > MOST or bytes >= MIB then
        upto = base.digits(found[i - 1].number)
        break
      end
      local a, b, c = texts_of(k, one.what)
      bytes = bytes + #a + #b + #c
      base.append(list, base.digits(one.number), one.what, a, b, c)
    end
    return { head[1] or '0', head[2] or '0', upto, list }
  end

  -- take: store one change in a space. Replies whether it did: not during another rollout.
  local function take(space, now_us, what, a, b, c)
    if what == RECORD then
      if a == '' then return true end
      local reply = policy.put({ keys.of(space).policy }, { now_us, a, b, 'copy', c })
      if type(reply) == 'table' then return nil, reply end
      return reply >= 0
    end
    local ctx = context.open(space, now_us)
    if what == GLOBS then return change.take_globs(ctx, a) end
    if a ~= '' and not partition.lives_here(ctx.k, (ctx.rec.base or ctx.rec).cut, chain.bare(what)) then
      return true
    end
    return change.take_name(ctx, what, a)
  end

  -- drip__copy: store changes of the authority.
  -- keys   <prefix>:policy of another partition
  -- args   now_us, the number that was asked for, the floor, the number up to which the list has all changes (0: the
  --        partition begins anew), then number, subject, three texts of each change, earliest first
  -- reply  { the number up to which this partition has all changes now, 1 where it must wait for a rollout here, else 0
  --        }
  -- errors BADARG, and those of a record
  -- cost   O(changes), and a look at each bucket that is named
  function copies.copy(redis_keys, args)
    local space, after, bottom = keys.space_before(redis_keys[1], 'policy'), integer(args[2]), integer(args[3])
    if not space or not after or not bottom or not integer(args[4]) or #args % 5 ~= 4 then
      return refuse('BADARG', 'copy takes the policy key, three numbers and changes')
    end
    local policy_key = redis_keys[1]
    local has = tonumber(call('HGET', policy_key, 'number') or '0')
    if has ~= after then return { has, 0 } end -- another daemon was faster
    -- A daemon of an earlier version would raise the number of a partition that is ahead, and leave there what the
    -- authority has lost.
    if has > tonumber(args[4]) and args[4] ~= '0' then return { has, 1 } end
    if has == 0 then call('HSET', policy_key, 'began_at', args[3]) end
    for i = 5, #args, 5 do
      local number = tonumber(args[i])
      if number > has then
        local taken, err = take(space, args[1], args[i + 1], args[i + 2], args[i + 3], args[i + 4])
        if err then return err end
        if not taken then return { has, 1 } end
        has = number
        call('HSET', policy_key, 'number', args[i])
      end
    end
    call('HSET', policy_key, 'number', args[4])
    return { tonumber(args[4]), 0 }
  end
end
