#!lua name=floor
-- Floors: functions that make the redis calls of dripd's and decide nothing. What dripd takes beyond its floor is its own
-- arithmetic.

redis.register_function('floor_empty', function() end)

-- What drip_push calls for a bucket that is scheduled, has no level and is not full.
-- keys  queue; args  job
redis.register_function('floor_push', function(keys, args)
  local call = redis.call
  call('HMGET', 'drip:policy', 'id', 'prev_id', 'held', 'settings', 'brakes', 'mark')
  call('TIME')
  call('LLEN', keys[1])
  call('ZSCORE', 'drip:schedule', keys[1])
  call('HGET', 'drip:level', keys[1])
  call('LPUSH', keys[1], args[1])
  return { 1, 1, 1000, -1, 0 }
end)

-- What a drain calls for so many due buckets with a job each, and nothing of what it decides.
-- keys  drip:schedule; args  how many; reply  how many jobs left
redis.register_function('floor_drain', function(keys, args)
  local call, format = redis.call, string.format
  local time = call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  local now, later, keep, queues = format('%d', now_us), format('%d', now_us + 3600000000), {}, {}
  local due = call('ZRANGE', keys[1], '-inf', now, 'BYSCORE', 'LIMIT', '0', args[1], 'WITHSCORES')
  for i = 1, #due, 2 do
    local bucket = due[i]
    local queue = 'drip:queue:' .. bucket
    call('LLEN', queue)
    local job = call('LINDEX', queue, '-1')
    call('XADD', 'drip:ready', '*', 'bucket', bucket, 'job', job, 'attempt', '1', 'due_us', due[i + 1], 'at_us', now,
      'lease_ms', '60000')
    queues[#queues + 1], keep[i], keep[i + 1] = queue, later, bucket
  end
  if #keep > 0 then
    call('DEL', unpack(queues))
    call('ZADD', keys[1], unpack(keep))
  end
  return #due / 2
end)

-- What a limiter calls. The floor replies five constants.
-- keys  what the limiter counts under; args  none that matters

local call

local function limiter(name, step)
  redis.register_function('floor_' .. name, function(keys)
    call = call or redis.call
    step(keys[1])
    return { 0, 5, 4, -1, 1000 }
  end)
end

-- All limiters but the sliding window keep their state in a string.
local STATE = '123456789012345678901234567890123'

limiter('string_refused', function(key)
  call('TIME')
  call('GET', key)
end)

limiter('string_admitted', function(key)
  call('TIME')
  call('GET', key)
  call('SET', key, STATE, 'PX', '60000')
end)

-- The sliding window keeps the times of its calls in a sorted set.
local function read_window(key)
  local time = call('TIME')
  call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  call('ZRANGEBYSCORE', key, '(1700000000000000', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  return time
end

limiter('window_refused', read_window)

limiter('window_admitted', function(key)
  local time = read_window(key)
  local score = time[1] .. time[2]
  call('ZREMRANGEBYSCORE', key, '-inf', '1700000000000000')
  call('ZADD', key, score, score)
  call('PEXPIRE', key, '60000')
end)
