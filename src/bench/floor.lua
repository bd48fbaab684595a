#!lua name=floor
-- Floors: functions that make the redis calls of dripd's and do nothing else.

redis.register_function('floor_empty', function() end)

-- What drip_push calls for a bucket that is scheduled, has no level and is not full.
-- keys  queue; args  job
redis.register_function('floor_push', function(keys, args)
  local call = redis.call
  call('HMGET', 'drip:policy', 'id', 'prev_id', 'held')
  call('TIME')
  call('LLEN', keys[1])
  call('ZSCORE', 'drip:schedule', keys[1])
  call('EXISTS', 'drip:level')
  call('LPUSH', keys[1], args[1])
  return { 1, 1, 1000, -1, 0 }
end)
