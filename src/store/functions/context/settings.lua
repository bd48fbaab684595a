-- needs: base, context, policy.record, policy.setting
-- Settings as they are stored: only this file writes them. What they mean is in policy/setting.
--
-- <prefix>:settings   an entry for each exact name          <prefix>:ends   when the first timed setting of a name ends
-- <prefix>:globs      the entries of globs: { v, seq, globs = { <glob> = entry } }
-- The field `settings` of the policy key changes with each change of a setting. A server that did not make the change
-- notices that and reads all again. The server that made it forgets only what it remembers of that name.

local settings = {}
do
  local digits = base.digits

  local NAMES_MOST, GLOBS_MOST = 100000, 100
  local LOOK_AGAIN_US = 60000000 -- when a setting of a newer version is looked at again

  local changes = 0

  -- new_version: a name that no other change of settings has. A library that is loaded anew counts on from the one in
  -- force: two changes may be of the same time.
  local function new_version(ctx)
    changes = max(changes, tonumber(match(ctx.rec.version or '', '^%d+%-(%d+)%-') or 0)) + 1
    return digits(ctx.now) .. '-' .. changes .. '-' .. context.server()
  end

  -- touched: a setting was changed at `now`. `globs` is the JSON of all globs where one of them changed, else `name` is
  -- the name that changed.
  local function touched(ctx, name, globs)
    local m, view = ctx.memory, ctx.rec
    local version = new_version(ctx)
    call('HSET', ctx.k.policy, 'settings', version)
    if globs or not view.version then
      local rec = view.version and view.base or view
      view = record.view(rec, ctx.k.settings, globs or call('GET', ctx.k.globs) or nil, view.version and view or nil)
      record.look_at(view, ctx.now)
      ctx.rec, m.view, m.old_view = view, view, nil
      if name and ctx.old_rec then context.look_back(ctx, m, view) end
    end
    view.version, view.first_end = version, nil
    if name then
      record.forget(view, name)
      if m.old_view then record.forget(m.old_view, name) end
    end
    return version
  end

  -- of_name: the settings of an exact name; nil where it has none.
  -- of_globs: the settings of all globs.
  -- The second reply of both is true where a newer version wrote them.
  function settings.of_name(ctx, name)
    local json = call('HGET', ctx.k.settings, name)
    if not json then return nil, false end
    return setting.decode(json)
  end

  function settings.of_globs(ctx)
    local json = call('GET', ctx.k.globs)
    if not json then return { v = 1, seq = 0, globs = {} }, false end
    return setting.decode(json)
  end

  -- room_for_name: whether one more exact name may have settings. room_for_glob: the same for a glob.
  function settings.room_for_name(ctx, name)
    return call('HEXISTS', ctx.k.settings, name) == 1 or call('HLEN', ctx.k.settings) < NAMES_MOST
  end

  function settings.room_for_glob(all, text)
    if all.globs[text] then return true end
    local n = 0
    for _ in pairs(all.globs) do n = n + 1 end
    return n < GLOBS_MOST
  end

  -- write_name: store the settings of an exact name; a name without settings is removed.
  -- writes  settings, ends, the policy key      cost  3 calls
  function settings.write_name(ctx, name, entry)
    if next(entry.keys) then
      call('HSET', ctx.k.settings, name, cjson.encode(entry))
    else
      call('HDEL', ctx.k.settings, name)
    end
    local first = setting.next_end(entry)
    if first < huge then call('ZADD', ctx.k.ends, digits(first), name) else call('ZREM', ctx.k.ends, name) end
    touched(ctx, name, nil)
  end

  -- write_globs: store the settings of globs. With `in_rollout` they are rolled out (control/sweep), and those before
  -- are kept until then.
  -- writes  globs, the policy key      cost  4 calls
  function settings.write_globs(ctx, all, in_rollout)
    local json, before = cjson.encode(all), call('GET', ctx.k.globs) or ''
    if next(all.globs) then call('SET', ctx.k.globs, json) else call('DEL', ctx.k.globs) end
    local version = touched(ctx, nil, json)
    -- Before the first record there is no rollout, but that record begins one: jobs accepted by then were accepted
    -- without these settings.
    if not ctx.id then call('HSETNX', ctx.k.policy, 'prev_globs', before) end
    if in_rollout then
      call('UNLINK', ctx.k.reached)
      call('HSET', ctx.k.policy, 'prev_id', ctx.id .. ' ' .. version, 'prev_globs', before)
    end
  end

  -- without_over: all globs without settings that have ended. Replies them, and whether any had ended.
  function settings.without_over(ctx, all)
    local dropped = false
    for text, entry in pairs(all.globs) do
      local was_over, left = setting.without_over(entry, ctx.now)
      dropped = dropped or was_over
      if not left then all.globs[text] = nil end
    end
    return all, dropped
  end

  -- drop_ended_globs: every bucket was reconciled after settings of globs had ended: remove those settings.
  function settings.drop_ended_globs(ctx)
    local all, dropped = settings.of_globs(ctx)
    if not all then return end
    all, dropped = settings.without_over(ctx, all)
    if dropped then settings.write_globs(ctx, all, false) end
  end

  -- begin_end: settings of globs have ended, and a rollout of that begins: they stay stored until it is done.
  function settings.begin_end(ctx)
    call('HSET', ctx.k.policy, 'prev_id', ctx.id .. ' ' .. new_version(ctx))
  end

  -- drop_over: a bucket was reconciled after timed settings of its name had ended: remove those settings.
  function settings.drop_over(ctx, name)
    local entry = settings.of_name(ctx, name)
    if entry and setting.without_over(entry, ctx.now) then
      settings.write_name(ctx, name, entry)
      settings.forget_if_none(ctx)
    end
  end

  -- reconcile_end: a name is noted as having an ended setting, but has none. A newer version may have written it: then
  -- it is looked at again later.
  function settings.reconcile_end(ctx, name)
    local entry, is_newer = settings.of_name(ctx, name)
    local first = entry and setting.next_end(entry) or huge
    if is_newer then
      context.note(ctx, 'newer', ctx.k.settings)
      first = ctx.now + LOOK_AGAIN_US
    end
    if first < huge then call('ZADD', ctx.k.ends, digits(first), name) else call('ZREM', ctx.k.ends, name) end
    if ctx.rec.version then ctx.rec.first_end = nil end
  end

  local function bring_back_globs(ctx)
    local all, any = settings.of_globs(ctx), false
    for _, entry in pairs(all and all.globs or {}) do any = setting.bring_back(entry, ctx.now, ctx.now_text) or any end
    if any then
      settings.write_globs(ctx, all, false)
      context.renew(ctx)
    end
  end

  -- bring_back: the clock has stepped back: shorten timed settings to the length that they were made for
  -- (policy/setting): those of globs where the cursor is '0', and those of a page of names. Replies the next cursor,
  -- '0' at the end.
  function settings.bring_back(ctx, cursor)
    if cursor == '0' then bring_back_globs(ctx) end
    local page = call('ZSCAN', ctx.k.ends, cursor, 'COUNT', ctx.limits.batch)
    for i = 1, #page[2], 2 do
      local name = page[2][i]
      local entry = settings.of_name(ctx, name)
      if entry and setting.bring_back(entry, ctx.now, ctx.now_text) then settings.write_name(ctx, name, entry) end
    end
    return page[1]
  end

  -- first_end: when the first timed setting ends, or `huge`.
  function settings.first_end(ctx)
    local view = ctx.rec
    if not view.version then return huge end
    if not view.first_end then
      local first = pcall_redis('ZRANGE', ctx.k.ends, '0', '0', 'WITHSCORES')
      if base.is_error(first) then context.note(ctx, 'wrong-type', ctx.k.ends) end
      view.first_end = first[2] and tonumber(first[2]) or huge
      for _, g in ipairs(view.all_globs) do view.first_end = min(view.first_end, setting.next_end(g.entry)) end
    end
    return view.first_end
  end

  -- ended: the names of which a timed setting has ended, at most `most`.
  function settings.ended(ctx, most)
    return call('ZRANGE', ctx.k.ends, '-inf', ctx.now_text, 'BYSCORE', 'LIMIT', '0', most)
  end

  -- forget_if_none: where no setting is left, remove the field `settings`, so that calls stop reading settings.
  function settings.forget_if_none(ctx)
    if not ctx.rec.version or ctx.old_rec or call('EXISTS', ctx.k.settings, ctx.k.globs, ctx.k.paused) > 0 then
      return
    end
    call('HDEL', ctx.k.policy, 'settings')
    ctx.rec, ctx.memory.view, ctx.memory.old_view = ctx.rec.base, nil, nil
  end
end
