-- needs: base, base.keys, base.partition, context, control.change, control.copies, control.daemons, control.lifetimes,
--   control.policy, control.purge, dispatch.drain, jobs, jobs.dead, jobs.heal, jobs.limit_report, jobs.reap,
--   jobs.throttle, limiter, queue.push, queue.submit, view.all_settings, view.audit, view.explain, view.figures,
--   view.front, view.match_count, view.routes, view.rows, view.walk
-- The functions by name. A public function takes no clock: it uses the server's. Its twin drip__<name> takes the time
-- as the first argument, as every internal function does.

do
  local function bind()
    for i = 1, #at_first_call do at_first_call[i]() end
    at_first_call = nil
  end

  local function rest(args)
    local list = {}
    for i = 2, #args do list[i - 1] = args[i] end
    return list
  end

  -- refused: a step raised this error. Of a wrong type Redis does not say which key it found.
  local function refused(key, why)
    local text = base.message_of(why)
    if find(text, 'WRONGTYPE', 1, true) then
      local space, bucket = keys.space_in(key or '')
      local wrong, wanted = nil, nil
      if space then wrong, wanted = keys.of_wrong_type(space, bucket) end
      if wrong then return base.wrong_type(wrong, wanted) end
    end
    if find(text, '^%u+ ') then return redis.error_reply(text) end
    error(why, 0)
  end

  local function register(name, flags, step)
    redis.register_function {
      function_name = name, flags = flags,
      callback = function(redis_keys, args)
        if not call then bind() end
        local key = redis_keys[1]
        if key and find(key, '{', 1, true) and partition.is_migrating(key) then
          return base.refuse('TRYAGAIN', 'the partition moves to another server; nothing was changed')
        end
        local ok, reply = pcall(step, redis_keys, args, '')
        if ok then return reply end
        return refused(key, reply)
      end,
    }
  end

  local function public(name, step, flags)
    register('drip_' .. name, flags, step)
    register('drip__' .. name, flags, function(redis_keys, args) return step(redis_keys, rest(args), args[1]) end)
  end

  local function internal(name, step, flags)
    register('drip__' .. name, flags or { 'allow-oom' }, step)
  end

  -- of_policy: a function whose first argument is the time, and whose only key that of the policy.
  local function of_policy(name, step, flags)
    internal(name, function(redis_keys, args)
      local space = keys.space_before(redis_keys[1], 'policy')
      if not space then return base.refuse('BADARG', name .. ' takes the policy key') end
      return step(context.open(space, args[1]), args)
    end, flags)
  end

  local function limit(name, door)
    register('drip_' .. name, {}, limiter.outside(door))
    register('drip__' .. name, {}, function(redis_keys, args) return door(redis_keys, rest(args), args[1]) end)
  end

  local kinds = limiter.by_name

  public('push', push.push, {})
  public('peek', push.peek, { 'no-writes' })
  public('submit', submit.submit, {})
  public('submit_all', submit.all, {})
  public('cancel', submit.cancel, { 'allow-oom' })
  public('find', submit.find, { 'no-writes' })
  public('ack', jobs.ack, { 'allow-oom' })
  public('adjust', jobs.adjust, { 'allow-oom' })
  public('fail', jobs.fail, { 'allow-oom' })
  public('slow', throttle.slow, { 'allow-oom' })
  public('told', limit_report.told, { 'allow-oom' })
  limit('fixed_window', limiter.door(kinds['fixed-window']))
  limit('sliding_window', limiter.door(kinds['sliding-window']))
  limit('sliding_counter', limiter.door(kinds['sliding-counter']))
  limit('token_bucket', limiter.door(kinds['token-bucket']))
  limit('leaky_meter', limiter.door(kinds['leaky-meter']))
  limit('throttle', limiter.throttle_door())
  internal('post', submit.post, {})
  internal('drain', drain.drain)
  internal('wake', drain.wake)
  of_policy('reap', reap.reap)
  of_policy('heal', heal.heal)
  of_policy('keep', lifetimes.keep)
  internal('policy', policy.put)
  internal('route', policy.make_route)
  internal('changed', copies.changed, { 'no-writes' })
  internal('copy', copies.copy)
  internal('set', change.set)
  internal('slow_node', throttle.slow_node)
  internal('told_node', limit_report.told_node)
  of_policy('settings', all_settings.page, { 'no-writes' })
  internal('explain', explain.explain, { 'no-writes' })
  internal('explain_budget', explain.budget, { 'no-writes' })
  internal('what_if', explain.what_if, { 'no-writes' })
  internal('met', match_count.count, { 'no-writes' })
  internal('look', push.look, { 'no-writes' })
  internal('beat', daemons.beat)
  internal('daemons', daemons.living, { 'no-writes' })
  internal('purge', purge.purge)
  internal('dead_list', dead.list, { 'no-writes' })
  internal('dead_count', dead.count, { 'no-writes' })
  internal('dead_retry', dead.retry)
  internal('dead_drop', dead.drop)
  internal('walk', walk.page, { 'no-writes' })
  internal('rank', walk.rank, { 'no-writes' })
  internal('top', walk.top, { 'no-writes' })
  internal('rows', rows.buckets, { 'no-writes' })
  internal('budget_rows', rows.budgets, { 'no-writes' })
  internal('front', front.jobs, { 'no-writes' })
  internal('drips', front.drips, { 'no-writes' })
  of_policy('figures', figures.read, { 'no-writes' })
  of_policy('routes', routes.list, { 'no-writes' })
  internal('audit', audit.audit, { 'no-writes' })

  -- drip__writes: nothing. A server that takes no writes now refuses it as it refuses a push, and says why, also to
  -- whoever calls it by FCALL_RO.
  -- reply  1
  internal('writes', function() return 1 end, {})

  -- drip__version: the version of this library, and of the daemons that it works with.
  -- reply  { its version, the oldest library version whose daemons understand its replies }
  internal('version', function() return { VERSION, OLDEST_DAEMON } end, { 'no-writes' })
end
