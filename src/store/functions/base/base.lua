-- needs: nothing
-- dripd: leaky buckets as queues, a pace for each key: the atomic steps.
--
-- All files of these folders are joined into one library, each after those that its first lines name (`join.rs` joins
-- them, and a test compares what a file names with what it uses). All pacing state is in Redis and all pacing
-- arithmetic is here. A daemon only asks "what is due?" and sleeps as long as the reply says. The public functions are
-- drip_<name> (register), the limiters among them. Functions named drip__<name> are for the daemon and for tests: they
-- take the time in microseconds as their first argument ("" means the server's clock).
--
-- Rules of the library:
--   Check everything, then write: Redis does not roll back.
--   No loop without a bound.
--   Times are whole microseconds since the epoch on the server's clock. They are exact in a double until the year 2255.
--   Each file is one `do ... end` block that adds one table to the library. (Lua allows a chunk 200 local names.)
--   A key is spelled in base/keys. A node's state is written in state/. What is remembered between calls is listed in
--   context/memory.

-- The version of this library, and the oldest library version whose daemons understand its replies.
local VERSION = 22
local OLDEST_DAEMON = 7

local MIB = 1048576

-- While a library loads, Redis offers only redis.register_function: no redis.call, no math, no string. So these names
-- get their values at the first call, and so does what files add to `at_first_call`.
local call, pcall_redis, floor, ceil, max, min, huge, find, match, sub, byte, gmatch, gsub, format
local at_first_call = {}

at_first_call[1] = function()
  call, pcall_redis = redis.call, redis.pcall
  floor, ceil, max, min, huge = math.floor, math.ceil, math.max, math.min, math.huge
  find, match, sub, byte, gmatch = string.find, string.match, string.sub, string.byte, string.gmatch
  gsub, format = string.gsub, string.format
end

local base = {} -- what every file needs
do
  -- refuse: an error reply. It begins with one of the public codes. The message says what was tried and what would be
  -- right.
  function base.refuse(code, message)
    return redis.error_reply(code .. ' ' .. message)
  end

  -- wrong_type: the refusal of a key with the wrong type: what it holds, what it must hold, and the way out.
  function base.wrong_type(key, wanted)
    local is = pcall_redis('TYPE', key)
    local what = is.ok and 'a ' .. is.ok or 'something else'
    return base.refuse(
      'WRONGTYPE',
      key .. ' holds ' .. what .. ' and must hold a ' .. wanted .. ': rename or delete it'
    )
  end

  -- integer: the number that a text of decimal digits stands for, or nil. (tonumber would take 0x10, 1e3, ' 5 ', nan.)
  function base.integer(text)
    if type(text) == 'string' and #text <= 16 and find(text, '^[0-9]+$') then return tonumber(text) end
  end

  -- digits: a whole number as text. padded: the same in at least 16 digits. %d is a C long: twice as fast as a float,
  -- but too short for a time on 32 bits.
  local whole_format, padded_format
  at_first_call[2] = function()
    local is_long = format('%d', 2 ^ 40) == '1099511627776'
    whole_format, padded_format = is_long and '%d' or '%.0f', is_long and '%016d' or '%016.0f'
  end

  function base.digits(number)
    return format(whole_format, number)
  end

  function base.padded(number)
    return format(padded_format, number)
  end

  -- exact: a text that reads as exactly this number. Most are whole.
  function base.exact(number)
    if number % 1 == 0 and number < 2 ^ 53 then return format(whole_format, number) end
    return format('%.17g', number)
  end

  -- is_error: the message of a reply that is an error, or nil.
  function base.is_error(reply)
    return type(reply) == 'table' and reply.err or nil
  end

  local WRITTEN_MOST = 4000 -- values that one command is given: `unpack` takes no more than 7,999

  -- write: run a command with all values of a list, in parts. Replies the first error, if any.
  function base.write(by, command, key, list)
    for from = 1, #list, WRITTEN_MOST do
      local err = base.is_error(by(command, key, unpack(list, from, min(from + WRITTEN_MOST - 1, #list))))
      if err then return err end
    end
  end

  -- seen: the reply to a read that may fail. Where the caller lacks the right, the call fails here: a value that the
  -- caller may not see must not be taken for missing, and least of all be remembered so for others. (Redis 7.0 and
  -- Valkey word the error differently, without a code.)
  function base.seen(reply)
    local err = base.is_error(reply)
    if err and base.is_refused(err) then error(reply) end
    return reply
  end

  -- is_refused: whether an error says that the caller lacks the right.
  function base.is_refused(err)
    return find(err, 'ACL failure', 1, true) ~= nil or find(err, 'executing the script can', 1, true) ~= nil
  end

  -- clock: the time of this call: the argument of a test, or the server's clock. An invalid time ends the call before
  -- anything is written.
  function base.clock(now_us)
    if now_us and now_us ~= '' then
      return base.integer(now_us) or error(base.refuse('BADARG', 'now_us must be whole microseconds, or empty'))
    end
    local t = call('TIME')
    return t[1] * 1000000 + t[2]
  end
end
