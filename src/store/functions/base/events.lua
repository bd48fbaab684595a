-- needs: base
-- Events: what people changed while dripd runs, one entry each, for display: <prefix>:events, capped.
--
-- field           meaning
-- what            purge, dead-retry, dead-drop, set, unset, pause, resume, close, open, slow
-- match           the bucket, or the glob; a budget in braces
-- before, after   the values before and after the change, as texts
-- by              who asked for it, as the caller says: user@host, or the name of a token
-- user            who Redis says the caller is (ACL WHOAMI)
-- reason          why, as the caller says
-- A field without a text is left out. The time of the change is in the entry's id.

local events = {}
do
  local is_error = base.is_error

  local KEEP = 10000 -- entries, about
  local LONGEST = 1000 -- bytes of a text
  local FIELDS = { 'what', 'match', 'before', 'after', 'by', 'user', 'reason' }

  -- short: a text, cut where it is too long, without half a character at its end.
  local function short(text)
    if #text <= LONGEST then return text end
    local cut = sub(text, 1, LONGEST)
    return sub(cut, 1, find(cut, '[\192-\255]?[\128-\191]*$') - 1)
  end

  local function put(k, event)
    local entry = {}
    for _, field in ipairs(FIELDS) do
      local text = event[field] or ''
      if text ~= '' then base.append(entry, field, short(text)) end
    end
    return pcall_redis('XADD', k.events, 'MAXLEN', '~', KEEP, '*', unpack(entry))
  end

  -- add: add the event of a change: { what = ..., match = ..., ... }. It is the last step of a change. Where the stream
  -- does not take it, the change holds all the same, and the reply is the error; else nil.
  -- writes  events      cost  O(1)
  function events.add(k, event)
    return is_error(put(k, event))
  end

  -- replace: add an event that replaces an earlier one of the same change ('' = there is none). Replies its id, or ''
  -- where the stream does not take it.
  -- writes  events      cost  O(1)
  function events.replace(k, earlier, event)
    local id = put(k, event)
    if is_error(id) then return '' end
    if earlier ~= '' then call('XDEL', k.events, earlier) end
    return id
  end
end
