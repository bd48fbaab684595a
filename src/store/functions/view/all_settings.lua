-- needs: base, context.settings, limits.constraint_store
-- All that operators have set, a page at a time.

local all_settings = {}
do
  local refuse = base.refuse

  -- in_force: add a page of the slow-downs and told limits in force, each as a timed setting of its node.
  local function in_force(ctx, cursor, add)
    local list, next_cursor = constraint_store.page(ctx, cursor)
    for _, one in ipairs(list) do
      add(one.id, 0, cjson.encode({ v = 1, keys = { [one.key] = { timed = one.setting } } }))
    end
    return next_cursor
  end

  -- drip__settings: a page of all settings, and of the slow-downs and told limits in force.
  -- keys   <prefix>:policy
  -- args   now_us, cursor ('' = from the beginning)
  -- reply  { the next cursor ('' = that was all), now, name or glob, 0 (name) or 1 (glob), its entry (JSON), ... };
  --        globs come first, and what is in force last, each an entry with the key `slow-down` or
  --        `told-limit`
  -- cost   O(batch)
  function all_settings.page(ctx, args)
    local cursor, reply = args[2] or '', { '', ctx.now_text }
    local function add(name, is_glob, json) base.append(reply, name, is_glob, json) end
    if cursor == '' then
      local all = settings.of_globs(ctx)
      for text, entry in pairs(all and all.globs or {}) do add(text, 1, cjson.encode(entry)) end
      cursor = '0'
    end
    local is_in_force = match(cursor, '^[st]%d+$')
    if not is_in_force and not find(cursor, '^%d+$') or #cursor > 19 then
      return refuse('BADARG', 'the cursor must be one that settings replied, or empty')
    end
    if is_in_force then
      reply[1] = in_force(ctx, cursor, add)
      return reply
    end
    local page = call('HSCAN', ctx.k.settings, cursor, 'COUNT', ctx.limits.batch)
    for i = 1, #page[2], 2 do add(page[2][i], 0, page[2][i + 1]) end
    if page[1] ~= '0' then reply[1] = page[1] elseif ctx.has_slow or ctx.has_told then reply[1] = 's0' end
    return reply
  end
end
