-- needs: base
-- Envelopes: how a submitted job is stored. Nothing here calls Redis.
--
-- A plain job is stored unchanged. A submitted job is stored as an envelope: the magic of its space, then
--   <version> <options><body>
-- The magic is 16 random bytes, kept in the field `mark` of the policy key. Only somebody who can read dripd's own keys
-- could push a plain job that looks like a submitted one. The options are text:
--   <cost> <deadline_us, 0: none> <accepted_us, 0: not known> <id> LF, then "<name>:<value>" LF of each header, then LF
-- Retries (queue/retries) use the same options.

local envelope = {}
do
  local digits, integer = base.digits, base.integer

  local MAGIC_BYTES = 16
  local VERSION = '1'

  envelope.MAGIC_BYTES = MAGIC_BYTES

  -- make_magic: a new magic. Functions have no source of randomness, so it is made of what nobody outside the server
  -- knows in full: the random id of the record, the addresses of two tables in the memory of the server, and the time.
  function envelope.make_magic(id, now_text)
    local hex = redis.sha1hex(table.concat({ id or '', now_text, tostring({}), tostring({}) }, ' '))
    local magic = gsub(sub(hex, 1, 2 * MAGIC_BYTES), '%x%x', function(two) return char(tonumber(two, 16)) end)
    return magic
  end

  -- is_id: whether a text can be the id of a job: 1 to 200 bytes of ! to ~.
  function envelope.is_id(text)
    return #text >= 1 and #text <= 200 and not find(text, '[^!-~]')
  end

  -- options_text: options as they are stored: { id, cost, deadline_us, accepted_us (nil: none), headers { name, value,
  -- ... } }.
  function envelope.options_text(o)
    local lines =
      { digits(o.cost) .. ' ' .. digits(o.deadline_us or 0) .. ' ' .. digits(o.accepted_us or 0) .. ' ' .. o.id }
    for i = 1, #o.headers, 2 do lines[#lines + 1] = o.headers[i] .. ':' .. o.headers[i + 1] end
    lines[#lines + 1] = '\n'
    return table.concat(lines, '\n')
  end

  -- options_at: the options that begin at a position of a text, and the position after them; nil where there are none.
  function envelope.options_at(text, at)
    local cost, deadline, accepted, id, on = match(text, '^(%d+) (%d+) (%d+) (%S+)\n()', at)
    if not on then return nil end
    local o = {
      id = id,
      cost = integer(cost) or 1,
      deadline_us = integer(deadline),
      accepted_us = integer(accepted),
      headers = {},
    }
    if o.accepted_us == 0 then o.accepted_us = nil end
    if o.deadline_us == 0 then o.deadline_us = nil end
    while true do
      local name, value, next_on = match(text, '^([a-z0-9-]+):([ -~]*)\n()', on)
      if not name then break end
      local n = #o.headers
      o.headers[n + 1], o.headers[n + 2], on = name, value, next_on
    end
    if byte(text, on) ~= 10 then return nil end
    return o, on + 1
  end

  -- pack: a submitted job as it is stored.
  function envelope.pack(magic, o, body)
    return table.concat({ magic, VERSION, ' ', envelope.options_text(o), body })
  end

  -- read: the options of a stored job with `body` added; nil for a plain job; { is_newer = true } for one that a newer
  -- version wrote. A text that begins with the magic but has no known format is a plain job.
  function envelope.read(magic, text)
    if not magic or sub(text, 1, MAGIC_BYTES) ~= magic then return nil end
    local version, at = match(text, '^(%d+) ()', MAGIC_BYTES + 1)
    if version ~= VERSION then return version and { is_newer = true } or nil end
    local o, on = envelope.options_at(text, at)
    if o then o.body = sub(text, on) end
    return o
  end

  -- changed_by: the options that count for a job at its turn: its own, or those of the envelope that has replaced it
  -- ('': it was cancelled; nil: nothing has changed).
  function envelope.changed_by(magic, o, text)
    return text and text ~= '' and envelope.read(magic, text) or o
  end

  -- body_of: the job as the producer gave it, and its options if it was submitted.
  function envelope.body_of(magic, text)
    local o = envelope.read(magic, text)
    if not o or o.is_newer then return text, nil end
    return o.body, o
  end

  -- add_fields: add the options of a job, without its id, to the fields of a stream entry.
  function envelope.add_fields(entry, o)
    local n = #entry
    if o.cost ~= 1 then
      entry[n + 1], entry[n + 2] = 'cost', digits(o.cost)
      n = n + 2
    end
    if o.deadline_us then
      entry[n + 1], entry[n + 2] = 'deadline_us', digits(o.deadline_us)
      n = n + 2
    end
    for i = 1, #o.headers, 2 do
      entry[n + 1], entry[n + 2] = 'h:' .. o.headers[i], o.headers[i + 1]
      n = n + 2
    end
  end

  -- options_of: the options in the fields of an entry; `list` has the same fields in their order.
  function envelope.options_of(fields, list, id)
    local o =
      { id = id, cost = integer(fields.cost or '') or 1, deadline_us = integer(fields.deadline_us or ''), headers = {} }
    for i = 1, #list, 2 do
      local name = sub(list[i], 1, 2) == 'h:' and match(list[i], '^h:([a-z0-9-]+)$')
      if name and not find(list[i + 1], '[^ -~]') then
        local n = #o.headers
        o.headers[n + 1], o.headers[n + 2] = name, list[i + 1]
      end
    end
    return o
  end

  -- is_bare: whether options have nothing but an id.
  function envelope.is_bare(o)
    return o.cost == 1 and not o.deadline_us and not o.headers[1]
  end
end
