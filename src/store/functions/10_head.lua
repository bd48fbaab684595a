#!lua name=dripd
-- dripd: per-key leaky buckets as queues, the atomic steps.
--
-- Every file beside this one is joined, in order of its name, into one library. All pacing state is in Redis and all
-- pacing arithmetic is here: a daemon only asks "what is due?" and sleeps for as long as it is told. The public
-- functions are drip_push, drip_peek, drip_ack and drip_fail, and the limiters (12_limiter); what begins with drip__ is for
-- the daemon and for tests, and takes the time in microseconds as its first argument ("" = the server's clock).
--
-- Rules: check everything, then write (Redis does not roll back). No loop without a bound. Times are whole
-- microseconds since the epoch on the server's clock; they fit a double exactly until the year 2255.

local VERSION = 5
local OLDEST_DAEMON = 5 -- the oldest version of dripd that understands the replies of this library

local MIB = 1048576
local EXCERPT = 4096             -- bytes kept of a job in the rejected stream
local CUT_BYTES = 16 * MIB       -- bytes of cut jobs read in one call; the rest is counted
local REJECTED_BYTES = 64 * MIB  -- size of the rejected stream
local HOLD_POLL_US = 20000       -- how often a held route is looked at: reading from a stream wakes nobody
local SETTLED_US = 250000        -- how long it is remembered how a dispatch left a queue, unless its echo comes sooner
local SETTLED_MOST = 10000       -- and of how many queues
local STEP_BACK_US = 1000        -- a clock that went back further than this starts a sweep
local LEASE_MIN_MS = 1000
local DELAY_MAX_MS = 366 * 86400000

-- While a library loads, Redis offers it nothing but redis.register_function: no redis.call, no math, no string. What a
-- file needs besides is bound at the first call, by the steps it adds to `at_first_call`.
local at_first_call = {}
local call, pcall_redis, floor, ceil, max, min, huge, find, match, sub, byte, gmatch, format

at_first_call[1] = function()
  call, pcall_redis = redis.call, redis.pcall
  floor, ceil, max, min, huge = math.floor, math.ceil, math.max, math.min, math.huge
  find, match, sub, byte, gmatch, format = string.find, string.match, string.sub, string.byte, string.gmatch, string.format
end

local function bind()
  for i = 1, #at_first_call do at_first_call[i]() end
end

-- The public error codes of a function. The message says what was tried and what would be right.
local function refuse(code, message)
  return redis.error_reply(code .. ' ' .. message)
end

-- whole: the number that a text of decimal digits stands for, or nil (tonumber would take 0x10, 1e3, ' 5 ', nan).
local function whole(text)
  if type(text) == 'string' and #text <= 16 and find(text, '^[0-9]+$') then return tonumber(text) end
end

-- digits: a whole number as text. %d is a C long: twice as fast as a float, but too short for a time on 32 bits.
local whole_format
at_first_call[2] = function() whole_format = format('%d', 2 ^ 40) == '1099511627776' and '%d' or '%.0f' end

local function digits(number)
  return format(whole_format, number)
end

-- is_error: the error of a pcall, or nil.
local function is_error(reply)
  return type(reply) == 'table' and reply.err or nil
end

-- The time of this call: the argument of a test, or the server's clock.
local function clock(now_us)
  if now_us and now_us ~= '' then return whole(now_us) end
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

-- tail: whether a byte goes on with a character of UTF-8.
local function tail(x) return x and x >= 0x80 and x <= 0xBF end

-- valid_name: 1 to 200 bytes of UTF-8 without control characters (Unicode Cc), `{` or `}`.
local function valid_name(name)
  if #name < 1 or #name > 200 then return false end
  if not find(name, '[^%w%.:_/@-]') then return true end
  if find(name, '[%c{}]') then return false end
  if not find(name, '[\128-\255]') then return true end
  local i, n = 1, #name
  while i <= n do
    local a, b, c, d = byte(name, i, i + 3)
    if a < 0x80 then i = i + 1
    elseif a >= 0xC2 and a <= 0xDF and tail(b) and not (a == 0xC2 and b < 0xA0) then i = i + 2
    elseif a >= 0xE0 and a <= 0xEF and tail(b) and tail(c) and not (a == 0xE0 and b < 0xA0)
      and not (a == 0xED and b > 0x9F) then i = i + 3
    elseif a >= 0xF0 and a <= 0xF4 and tail(b) and tail(c) and tail(d) and not (a == 0xF0 and b < 0x90)
      and not (a == 0xF4 and b > 0x8F) then i = i + 4
    else return false end
  end
  return true
end

-- A queue's key is <prefix>:queue:<bucket>; a prefix holds no ":queue:", so the first one splits it.
local function split_queue(key)
  local at, to = find(key, ':queue:', 1, true)
  if not at or at == 1 then return nil end
  return sub(key, 1, at - 1), sub(key, to + 1)
end

-- A ready stream's key is <prefix>:ready or <prefix>:ready:<route>; a prefix does not end in ":ready".
local function split_ready(key)
  local prefix = match(key, '^(.+):ready$')
  if prefix and not find(prefix, ':ready$') then return prefix, 'default' end
  local route
  prefix, route = match(key, '^(.+):ready:([%w%._-]+)$')
  if prefix and #route <= 64 and not find(prefix, ':ready$') then return prefix, route end
end

local function ready_key(prefix, route)
  if route == 'default' then return prefix .. ':ready' end
  return prefix .. ':ready:' .. route
end
