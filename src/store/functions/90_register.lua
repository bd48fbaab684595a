-- The functions by name. A public one takes no clock: its step is told '', the server's. Its twin drip__<name> takes the time
-- as the first argument, as every internal one does.

local function rest(args)
  local list = {}
  for i = 2, #args do list[i - 1] = args[i] end
  return list
end

local function register(name, flags, step)
  redis.register_function {
    function_name = name, flags = flags,
    callback = function(keys, args)
      if not call then bind() end
      return step(keys, args, '')
    end,
  }
end

local function public(name, step, flags)
  register('drip_' .. name, flags, step)
  register('drip__' .. name, flags, function(keys, args) return step(keys, rest(args), args[1]) end)
end

local function internal(name, step, flags)
  register('drip__' .. name, flags or { 'allow-oom' }, step)
end

public('push', push, {})
public('peek', peek, { 'no-writes' })
public('ack', ack, { 'allow-oom' })
public('fail', fail, { 'allow-oom' })
public('fixed_window', door(limiters['fixed-window']), {})
public('sliding_window', door(limiters['sliding-window']), {})
public('sliding_counter', door(limiters['sliding-counter']), {})
public('token_bucket', door(limiters['token-bucket']), {})
public('leaky_meter', door(limiters['leaky-meter']), {})
public('throttle', throttle_door(), {})
internal('drain', drain)
internal('wake', wake)
internal('reap', reap)
internal('policy', policy)
internal('route', route)
internal('look', look_at, { 'no-writes' })
internal('version', function() return { VERSION, OLDEST_DAEMON } end, { 'no-writes' })
internal('beat', daemons.beat)
internal('daemons', daemons.living, { 'no-writes' })
