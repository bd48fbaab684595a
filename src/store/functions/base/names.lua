-- needs: base
-- Names and ids from outside.

local names = {}
do
  -- tail: whether a byte continues a UTF-8 character.
  local function tail(x) return x and x >= 0x80 and x <= 0xBF end

  -- is_utf8: whether bytes are valid UTF-8 without the control characters that begin with the byte 0xC2.
  local function is_utf8(text)
    local i, n = 1, #text
    while i <= n do
      local a, b, c, d = byte(text, i, i + 3)
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

  -- is_bucket: whether a text can name a bucket: 1 to 200 bytes of UTF-8 without control characters (Unicode Cc), `{`
  -- or `}`.
  function names.is_bucket(name)
    if #name < 1 or #name > 200 then return false end
    if find(name, '^[%w%.:_/@-]+$') then return true end
    if find(name, '[%c{}]') then return false end
    return not find(name, '[\128-\255]') or is_utf8(name)
  end

  -- tag_of: the first `parts` parts of a name, split at ':'; the whole name where it has fewer, or with 0.
  function names.tag_of(name, parts)
    local at = 0
    for _ = 1, parts do
      at = find(name, ':', at + 1, true)
      if not at then return name end
    end
    return at > 0 and sub(name, 1, at - 1) or name
  end

  -- as_text: the first bytes of an input as text, at most `most`. Where they are not UTF-8, each byte that is not ASCII
  -- becomes `?`.
  function names.as_text(bytes, most)
    local text = sub(bytes, 1, most)
    if find(text, '[\128-\255]') and not is_utf8(text) then text = gsub(text, '[\128-\255]', '?') end
    return text
  end

  -- is_after: whether one entry id is greater than another.
  function names.is_after(a, b)
    local a_ms, a_n = match(a, '^(%d+)-(%d+)$')
    local b_ms, b_n = match(b, '^(%d+)-(%d+)$')
    if a_ms == b_ms then return tonumber(a_n) > tonumber(b_n) end
    return tonumber(a_ms) > tonumber(b_ms)
  end

  -- entry_id: the full form of a stream's entry id (<ms>-<seq> or <ms>, each at most 2^64 - 1), or nil.
  function names.entry_id(text)
    local ms, seq = match(text, '^([0-9]+)%-([0-9]+)$')
    if not ms then ms, seq = match(text, '^([0-9]+)$'), '0' end
    if not ms then return nil end
    local function fits(n) return #n < 20 or (#n == 20 and n <= '18446744073709551615') end
    if fits(ms) and fits(seq) then return ms .. '-' .. seq end
  end
end
