-- needs: base, base.keys, base.names
-- Limiters: "X may do Y at most N times in T". Each recipe is one atomic call on one key, without a daemon.
--
-- They share nothing with the buckets but the library. A policy may name some as gates before its bucket (queue/gate).
-- A kind of limiter is a table in `limiter.by_name`:
--   parameters                 its arguments after the key: { name, least, most } each; after them come a quantity, and
--   option                     a word that may end the call
--   prepare(p)                 compute what follows from the parameters alone: p.limit, and what the others need
--   read(s, key, now, p, given)  read the state of the key into s; replies an error, or nothing. s.free is how many
--   would pass now; where it is below 0 not even a quantity of 0 passes. `given`: the option was given
--   wait_ms(s, p, quantity)    how long until that quantity passes if nobody else calls; for a refused quantity within
--   the limit
--   reset_ms(s, p)             how long until the key carries no information; 0: it carries none
--   charge(s, p, quantity)     admit a quantity that passes, and update s: the only write
-- All state is in one key that expires. A refused call and a quantity of 0 write nothing.

local limiter = {}
do
  local refuse, integer, digits, clock = base.refuse, base.integer, base.digits, base.clock

  local by_name = {}
  limiter.by_name = by_name

  limiter.LIMIT_MAX = 1000000
  limiter.PERIOD_MAX_MS = 366 * 86400000
  local EXACT = 2 ^ 53
  -- Whole numbers below it are exact in a double, and so is the floor of the quotient of two of them.
  limiter.EXACT = EXACT

  local function bad_argument(wanted, given)
    local right = 'a whole number, ' .. digits(wanted.least) .. ' to ' .. digits(wanted.most)
    if not given then return refuse('BADARG', wanted.name .. ' is missing: ' .. right) end
    return refuse('BADARG', wanted.name .. ' must be ' .. right .. ', not "' .. names.as_text(given, 40) .. '"')
  end

  -- learn: decode the first arguments after the key, or nil and the error. Calls repeat the same few sets of arguments,
  -- so what `prepare` made of them is kept, at most 1,000 sets a limiter, in nested tables by argument.
  function limiter.learn(kind, args)
    local wanted, p = kind.parameters, {}
    for i = 1, #wanted do
      local want = wanted[i]
      p[want.name] = base.whole(args[i], want.least, want.most)
      if not p[want.name] then return nil, bad_argument(want, args[i]) end
    end
    kind.prepare(p)
    local known = kind.known
    if not known or known.count >= 1000 then
      known = { count = 0, first = {} }
      kind.known = known
    end
    known.count = known.count + 1
    local node = known.first
    for i = 1, #wanted - 1 do
      node[args[i]] = node[args[i]] or {}
      node = node[args[i]]
    end
    node[args[#wanted]] = p
    return p
  end

  -- quantity_of: the quantity after the parameters, and whether the option was given; or nil and the error.
  local function quantity_of(kind, args)
    local at, quantity, option, given = kind.takes + 1, 1, kind.option, false
    local text = args[at]
    if text and not (option and upper(text) == option) then
      quantity, at = integer(text), at + 1
      local want = kind.quantity
      if not quantity or quantity > want.most then return nil, bad_argument(want, text) end
    end
    if option and args[at] and upper(args[at]) == option then at, given = at + 1, true end
    if args[at] then return nil, refuse('BADARG', 'argument ' .. at .. ' after the key is one too many') end
    return quantity, given
  end

  function limiter.foreign(what)
    return refuse('WRONGTYPE', 'the key holds something else than the state of a ' .. what)
  end

  -- part: floor(a * b / c) and the remainder, exact even where the product is not; a below 2^21, b and c below 2^45.
  function limiter.part(a, b, c)
    local product = a * b
    if product < EXACT then
      local q = floor(product / c)
      return q, product - q * c
    end
    local whole_part = floor(b / c)
    b = b - whole_part * c
    local q, r, digit = 0, 0, nil
    for shift = 2, 0, -1 do -- three digits of a, to the base of 128: each step stays below 2^53
      digit = floor(a / 128 ^ shift) % 128
      local t = r * 128 + digit * b
      local more = floor(t / c)
      q, r = q * 128 + more, t - more * c
    end
    return a * whole_part + q, r
  end

  -- add: register a limiter under its name.
  function limiter.add(name, kind)
    kind.takes = #kind.parameters
    kind.quantity = { name = 'quantity', least = 0, most = kind.most or limiter.LIMIT_MAX }
    by_name[name] = kind
  end

  -- read: the parameters and the quantity of a call, with the state of the key in s; or nil and the error.
  function limiter.read(kind, s, given_keys, args, now_us)
    if #given_keys ~= 1 then return nil, refuse('BADARG', 'one key is needed') end
    local key = given_keys[1]
    local p, err = kind.known, nil
    if p then
      p = p.first
      for i = 1, kind.takes do
        p = p and p[args[i] or '']
      end
    end
    if not p then
      p, err = limiter.learn(kind, args)
      if not p then return nil, err end
    end
    local quantity, option = 1, false
    if args[kind.takes + 1] then
      quantity, option = quantity_of(kind, args)
      if not quantity then return nil, option end
    end
    local now
    if now_us == '' then -- as clock() does, without the cost of calling it
      local t = call('TIME')
      now = t[1] * 1000000 + t[2]
    else
      now = clock(now_us)
    end
    err = kind.read(s, key, now, p, option)
    if err then return nil, err end
    return p, quantity
  end

  -- door: the public function of a limiter.
  -- keys   the key
  -- args   its parameters [quantity] [its option]
  -- reply  { limited 0/1, limit, remaining, retry_after_ms or -1, reset_after_ms }
  -- errors BADARG WRONGTYPE OOM; nothing is changed
  function limiter.door(kind)
    local s = {} -- shared by all calls: functions never run at the same time
    return function(given_keys, args, now_us)
      local p, quantity = limiter.read(kind, s, given_keys, args, now_us)
      if not p then return quantity end
      if quantity <= s.free then
        if quantity > 0 then kind.charge(s, p, quantity) end
        return { 0, p.limit, s.free, -1, kind.reset_ms(s, p) }
      end
      local wait = quantity > p.limit and -1 or kind.wait_ms(s, p, quantity)
      return { 1, p.limit, max(0, s.free), wait, kind.reset_ms(s, p) }
    end
  end

  -- outside: the same for callers from outside: one of dripd's own keys is refused, because a limiter would overwrite
  -- it.
  function limiter.outside(door)
    return function(given_keys, args, now_us)
      local key = given_keys[1]
      if key and find(key, ':', 1, true) and keys.is_ours(key) then
        local text = names.as_text(key, 256)
        return refuse('BADARG', text .. " is one of dripd's own keys: choose another one for a limiter")
      end
      return door(given_keys, args, now_us)
    end
  end
end
