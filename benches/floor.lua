#!lua name=floor
-- Floors: functions that make the same redis calls as a limiter, decide nothing, and reply five constants. What a limiter
-- costs beyond its floor is its own arithmetic.

local call

local function register(name, step)
  redis.register_function('floor_' .. name, function(keys)
    call = call or redis.call
    step(keys[1])
    return { 0, 5, 4, -1, 1000 }
  end)
end

local STATE = '123456789012345678901234567890123'

register('string_refused', function(key)
  call('TIME')
  call('GET', key)
end)

register('string_admitted', function(key)
  call('TIME')
  call('GET', key)
  call('SET', key, STATE, 'PX', '60000')
end)

local function read_window(key)
  local time = call('TIME')
  call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  call('ZRANGEBYSCORE', key, '(1700000000000000', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  return time
end

register('window_refused', read_window)

register('window_admitted', function(key)
  local time = read_window(key)
  local score = time[1] .. time[2]
  call('ZREMRANGEBYSCORE', key, '-inf', '1700000000000000')
  call('ZADD', key, score, score)
  call('PEXPIRE', key, '60000')
end)
