-- needs: base, base.keys, base.partition, context, context.memory, limits.recount, policy.forward, policy.record,
--   route, state
-- Putting a record in force, and making routes.

local policy = {}
do
  local refuse = base.refuse

  local function put_source(policy_key, source)
    if source ~= '' then call('HSET', policy_key, 'source', source) else call('HDEL', policy_key, 'source') end
  end

  -- has_begun_to_end: whether settings of globs have ended, and that is applied to some buckets, but not to all.
  local function has_begun_to_end(space, now_us)
    local ctx = context.open(space, now_us)
    return ctx.old_rec and call('EXISTS', ctx.k.reached) == 1
  end

  -- drip__policy: replace the record in force. The old one stays beside it until the rollout is done (control/sweep).
  -- keys   <prefix>:policy
  -- args   now_us, id (random), record (JSON), "replace" | "if-missing" | "copy" (of the authority's), source: where it
  --        is from (JSON; '' or none: not known)
  -- reply  1 stored, 0 the one in force is the same (or, with if-missing, there is one), -1 busy: a rollout is going on
  -- cost   O(entries of the record)
  function policy.put(redis_keys, args)
    local policy_key, id, json, mode = redis_keys[1], args[2], args[3], args[4]
    local space = keys.space_before(policy_key, 'policy')
    local rec = record.decode(json or '')
    if not space or not rec or not id or #id < 8 then
      return refuse('BADARG', 'policy takes a key, an id and a record')
    end
    local k = keys.of(space)
    local head = call('HMGET', policy_key, 'id', 'prev_id', 'record', 'held', 'cut', 'source')
    local cut = rec.cut and partition.text_of(rec.cut)
    if not partition.matches(k, rec.cut) or head[5] and head[5] ~= cut then
      return refuse('BADARG', 'the record is of a system with other partitions than the one that is stored')
    end
    if mode == 'if-missing' and head[1] then return 0 end
    local same = head[3] == json and (mode ~= 'copy' or head[1] == id)
    if not same and (head[2] or has_begun_to_end(space, args[1])) then return -1 end
    -- checks end here
    for name in pairs(record.routes_of(rec)) do
      local err = route.make(space, name)
      if err then return route.refuse(space, name, err) end
    end
    put_source(policy_key, args[5] or '') -- the same record may be from other lines now
    if not same or (head[6] or '') ~= (args[5] or '') then partition.changed(k, partition.RECORD) end
    if same then return 0 end
    if cut then call('HSET', policy_key, 'cut', cut) end
    memory.hand_over(space, head[1], id)
    call('HSET', policy_key, 'id', id, 'record', json)
    local may_limit = rec.has_slots and recount.is_any_out({ space = space, k = k })
    if state.any(k, base.clock(args[1])) or (head[4] or '') ~= '' or may_limit then
      call('UNLINK', k.reached)
      call('HSET', policy_key, 'prev_id', head[1] or 'built-in', 'prev', head[3] or record.built_in_json)
    else
      call('HDEL', policy_key, 'prev_globs')
    end
    -- Settings stay in force where somebody deleted the policy key.
    if call('EXISTS', k.settings, k.globs) > 0 then call('HSETNX', policy_key, 'settings', 'kept ' .. id) end
    context.wake(k) -- a faster rate makes dues earlier
    return 1
  end

  -- drip__route: create a route's stream and group, where they are missing (`dripd work` calls it first). A route that
  -- forwards has no stream, except for what is left from before it forwarded.
  -- keys   a ready stream
  -- args   now_us
  -- errors BADARG
  function policy.make_route(redis_keys, args)
    local space, name = keys.split_ready(redis_keys[1] or '')
    if not space then return refuse('BADARG', 'the key must be <prefix>:ready or <prefix>:ready:<route>') end
    local f = forward.of(context.open(space, args[1]).rec, name)
    if f and call('EXISTS', redis_keys[1]) == 0 then
      return refuse('BADARG', 'route ' .. name .. ' has no ready stream: its jobs go into the list ' .. f.to
        .. ', and the workers of that list take them; run those, or work another route')
    end
    local err = route.make(space, name)
    if err then return redis.error_reply(err) end
    return 1
  end
end
