-- needs: base
-- Forwarding: routes whose jobs go into a list that other workers serve: Sidekiq, Celery, Laravel, RQ. Only the job's
-- bytes go there. dripd is done with the job then: it has no lease, is not retried, and takes no slot.
--
-- A route of this kind, `f`, is an entry of [[route]]:
--   name          as policies name it
--   push          the command that adds to its list, at the end from which its workers do not take
--   to, set, member, notify   its keys as they are written; with partitions, `{p}` in them stands for a partition's tag
--   at            by tag: the same, with the keys of that partition
-- Its room (route/room) has `forward`, one of `at`, `length`, that of its list, and `marks`, jobs that were sent. One
-- that was sent again later (`is_repeated`) cannot be told from the later one.

local forward = {}
do
  local is_error = base.is_error

  -- index: the entries of a record by their names; nil where there are none.
  function forward.index(entries)
    local of
    for _, entry in ipairs(entries or {}) do
      local register = entry.register or {}
      of = of or {}
      of[entry.name] = {
        name = entry.name, push = entry['end'] == 'right' and 'RPUSH' or 'LPUSH', to = entry.to, set = register.set,
        member = register.member, notify = entry.notify, at = {},
      }
    end
    return of
  end

  -- of: the entry of a route by a record, or by a view of one; nil where its jobs go to a ready stream.
  function forward.of(rec, name)
    local forwards = (rec.base or rec).forwards
    return forwards and forwards[name]
  end

  -- fit: where the route of a policy forwards, drop what needs a worker of dripd's. `as_written` keeps it: another
  -- route may be set at run time.
  function forward.fit(p, forwards)
    p.forward = forwards and forwards[p.route] or nil
    if not p.forward or not (p.concurrency or p.ordered) then return end
    p.as_written = setmetatable({ concurrency = p.concurrency, ordered = p.ordered }, { __index = p })
    p.concurrency, p.ordered = nil, false
  end

  -- at_tag: a route in one partition; tag is false where there are none.
  local function at_tag(f, tag)
    local at = f.at[tag]
    if not at then
      at = { push = f.push }
      for _, name in ipairs({ 'to', 'set', 'member', 'notify' }) do
        at[name] = f[name] and (tag and gsub(f[name], '{p}', tag) or f[name])
      end
      f.at[tag] = at
    end
    return at
  end

  -- look: a route in a partition: its `at` and the length of its list. Where one of its keys cannot be used: `at`, 0,
  -- that key, what it must hold and the error.
  -- reads   the list, what registers it, what is notified      writes  nothing      cost  1 to 3 calls
  function forward.look(f, k)
    local at = at_tag(f, k.tag)
    local length, key, wanted, err = 0, nil, nil, nil
    local function try(command, one, what)
      if key or not one then return end
      local reply = pcall_redis(command, one)
      err = is_error(reply)
      if err then key, wanted = one, what elseif one == at.to then length = reply end
    end
    try('LLEN', at.to, 'list')
    try('SCARD', at.set, 'set')
    try('LLEN', at.notify, 'list')
    return at, key and 0 or length, key, wanted, err
  end

  -- count_of: how often a job is in the list `at`, up to 2; or nil and the error, where that may not be asked.
  -- newest: the job that was pushed last into it, where no other is the same; else false.
  -- reads   the list      writes  nothing      cost  1 and 2 calls, O(length)
  function forward.count_of(at, job)
    local found = pcall_redis('LPOS', at.to, job, 'RANK', at.push == 'LPUSH' and '-1' or '1', 'COUNT', '2')
    local err = is_error(found)
    return not err and #found or nil, err
  end

  function forward.newest(at)
    local job = pcall_redis('LINDEX', at.to, at.push == 'LPUSH' and '0' or '-1')
    return type(job) == 'string' and forward.count_of(at, job) == 1 and job
  end

  -- send: a job goes into the list. Commands that may be refused come first, so that the job is in one place whatever
  -- fails. Replies a text, or an error having moved nothing.
  -- writes  the list, what registers it, what is notified      cost  1 to 3 calls
  function forward.send(r, job)
    local at = r.forward
    local added = r.length == 0 and at.set and pcall_redis('SADD', at.set, at.member)
    if is_error(added) then return added end
    local notified = at.notify and pcall_redis('RPUSH', at.notify, '1')
    if is_error(notified) then return notified end
    local length = pcall_redis(at.push, at.to, job)
    if is_error(length) then
      if notified then pcall_redis('RPOP', at.notify) end
      return length
    end
    r.length, r.job = length, job
    for _, one in ipairs(r.marks or {}) do
      if one.job == job then one.is_repeated = true end
    end
    return ''
  end

  -- refuse: the refusal of settings that a bucket cannot have whose jobs are forwarded; nil where it can.
  local UNFIT = { 'attempts', 'backoff', 'lease', 'concurrency', 'ordered' }

  function forward.refuse(f, set, bucket)
    for _, key in ipairs(UNFIT) do
      if set[key] then
        local why = 'its route ' .. f.name .. ' forwards to the list ' .. f.to .. ', whose own workers take its jobs'
        local way_out = 'set another route, or leave ' .. key .. ' out'
        return base.refuse('BADARG', key .. ' means nothing for ' .. bucket .. ': ' .. why .. '; ' .. way_out)
      end
    end
  end
end
