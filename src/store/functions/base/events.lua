-- needs: base
-- Events: what people changed while dripd runs, one entry each, for whoever shows it: <prefix>:events, capped.
--
-- field           what it says
-- what            purge, dead-retry, dead-drop, set, unset, pause, resume, close, open, slow
-- match           the bucket, or the glob; a budget in braces
-- before, after   how it was and how it is now, as texts
-- by              who asked for it, as the caller says: user@host, or the name of a token
-- user            who Redis says the caller is (ACL WHOAMI)
-- reason          why, as the caller says
-- A field without a text is left out. When it happened is the time in the entry's id.

local events = {}
do
  local is_error = base.is_error

  local KEEP = 10000  -- entries, about
  local LONGEST = 1000 -- bytes of a text
  local FIELDS = { 'what', 'match', 'before', 'after', 'by', 'user', 'reason' }

  -- short: a text, or as much of it as is kept, without a character that was cut in two.
  local function short(text)
    if #text <= LONGEST then return text end
    local cut = sub(text, 1, LONGEST)
    return sub(cut, 1, find(cut, '[\192-\255]?[\128-\191]*$') - 1)
  end

  local function put(k, event)
    local entry = {}
    for _, field in ipairs(FIELDS) do
      local text = event[field] or ''
      if text ~= '' then
        local n = #entry
        entry[n + 1], entry[n + 2] = field, short(text)
      end
    end
    return pcall_redis('XADD', k.events, 'MAXLEN', '~', KEEP, '*', unpack(entry))
  end

  -- add: a change becomes an event: { what = ..., match = ..., ... }. It is the last thing that a change does. Where the stream
  -- does not take it the change holds all the same: the reply is the error then, else nil.
  -- writes  events      cost  O(1)
  function events.add(k, event)
    return is_error(put(k, event))
  end

  -- replace: an event in place of an earlier one of the same change ('' = there is none). Replies its id, or '' where the stream
  -- does not take it.
  -- writes  events      cost  O(1)
  function events.replace(k, earlier, event)
    local id = put(k, event)
    if is_error(id) then return '' end
    if earlier ~= '' then call('XDEL', k.events, earlier) end
    return id
  end
end
