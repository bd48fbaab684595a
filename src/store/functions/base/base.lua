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
local VERSION = 37
local OLDEST_DAEMON = 7

local MIB = 1048576

-- While a library loads, Redis offers only redis.register_function: no redis.call, no math, no string. So these names
-- get their values at the first call, and so does what files add to `at_first_call`.
local call, pcall_redis, floor, ceil, max, min, huge, fmod
local find, match, sub, byte, char, gmatch, gsub, format, upper, lower
local at_first_call = {}

at_first_call[1] = function()
  call, pcall_redis = redis.call, redis.pcall
  floor, ceil, max, min, huge, fmod = math.floor, math.ceil, math.max, math.min, math.huge, math.fmod
  find, match, sub, byte, char = string.find, string.match, string.sub, string.byte, string.char
  gmatch, gsub, format, upper, lower = string.gmatch, string.gsub, string.format, string.upper, string.lower
end

local base = {} -- what every file needs
do
  base.TIME_FROM_MS = 100000000000 -- so many ms since 1970 and more are a time: fewer may be seconds, or a duration

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

  -- not_a: the refusal of a key that holds something else than this command reads; nil where it does not.
  function base.not_a(wanted, command, key)
    if base.is_error(pcall_redis(command, key)) then return base.wrong_type(key, wanted) end
  end

  -- integer: the number that a text of decimal digits stands for, or nil. (tonumber would take 0x10, 1e3, ' 5 ', nan.)
  function base.integer(text)
    if type(text) == 'string' and #text <= 16 and find(text, '^[0-9]+$') then return tonumber(text) end
  end

  -- whole: the same for a number in a range.
  function base.whole(text, least, most)
    local n = base.integer(text)
    return n and n >= least and n <= most and n or nil
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

  -- number: a reply that is a number; 0 where it is an error, because the key holds something else.
  function base.number(reply)
    return type(reply) == 'number' and reply or 0
  end

  -- message_of: the text of what `pcall` caught. (Redis' pcall replies a text; a table keeps its code.)
  function base.message_of(err)
    return type(err) == 'table' and err.err or tostring(err)
  end

  -- append: add some values to the end of a list.
  function base.append(list, ...)
    for _, value in ipairs({ ... }) do list[#list + 1] = value end
  end

  -- by_name: a table from a list of names and values by turns. names_in: the names alone, in their order.
  function base.by_name(list)
    local values = {}
    for i = 1, #list, 2 do values[list[i]] = list[i + 1] end
    return values
  end

  function base.names_in(list)
    local found = {}
    for i = 1, #list, 2 do found[#found + 1] = list[i] end
    return found
  end

  -- copy: a table with the same fields.
  function base.copy(of)
    local copy = {}
    for name, value in pairs(of) do copy[name] = value end
    return copy
  end

  -- first_score: the lowest score of a sorted set, or `huge`.
  function base.first_score(key)
    local first = call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]
    return first and first + 0 or huge
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
