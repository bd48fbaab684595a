-- needs: base
-- Globs, as Redis reads them in KEYS, on bytes: * ? [a-z] [^a], and \ for the next byte as it is.

local glob = {}
do
  local CAPTURES_MOST = 30 -- Lua has room for 32 in a pattern
  local STEPS_MOST = 2000000 -- of a call: some milliseconds
  glob.LONGEST = 1000 -- bytes of a glob
  glob.STEPS_MOST = STEPS_MOST

  -- kind: 'name' for a glob that matches one name only, 'prefix' for one that ends in its only special byte, a star;
  -- else 'glob'. With it the text without the star.
  function glob.kind(text)
    local plain, rest = match(text, '^([^%*%?%[\\]*)(.*)$')
    if rest == '' then return 'name', plain end
    if rest == '*' then return 'prefix', plain end
    return 'glob', text
  end

  -- lua_byte: a byte as a Lua pattern that matches it and nothing else.
  local function lua_byte(b)
    if b == 0 then return '%z' end
    local c = char(b)
    return find(c, '%w') and c or '%' .. c
  end

  local NO_ENDS = { [0] = true, [37] = true, [45] = true, [93] = true, [94] = true } -- NUL % - ] ^

  -- add_range: the bytes from one to another as items of a Lua class. Bytes that cannot be an end of a range there are
  -- items of their own.
  local function add_range(items, from, to)
    while from < to and NO_ENDS[from] do items[#items + 1], from = lua_byte(from), from + 1 end
    while from < to and NO_ENDS[to] do items[#items + 1], to = lua_byte(to), to - 1 end
    items[#items + 1] = from < to and char(from) .. '-' .. char(to) or lua_byte(from)
  end

  -- class_of: a class that begins behind the bracket at `i`, as a Lua pattern (nil where it matches nothing), and where
  -- the glob goes on. A range stays a range: a class of Lua is compared item by item.
  local function class_of(text, i)
    local items, negated, n = {}, false, #text
    i = i + 1
    if byte(text, i) == 94 then negated, i = true, i + 1 end
    while i <= n and byte(text, i) ~= 93 do
      local from = byte(text, i)
      if from == 92 and i < n then
        i = i + 1
        items[#items + 1] = lua_byte(byte(text, i))
      elseif byte(text, i + 1) == 45 and i + 2 <= n then
        local to = byte(text, i + 2)
        add_range(items, min(from, to), max(from, to))
        i = i + 2
      else
        items[#items + 1] = lua_byte(from)
      end
      i = i + 1
    end
    if #items == 0 then return negated and '.' or nil, i + 1 end
    return (negated and '[^' or '[') .. table.concat(items) .. ']', i + 1
  end

  -- compile: a glob as the pieces between its stars. A piece is a text to be found as it is, or, where it holds ? or a
  -- class, a Lua pattern; both are searched by C code, and a piece never matches more than one length.
  --   begins     of one with one or two stars: what stands before the last of them, as a Lua pattern that never has to
  --              go back
  --   captures   what its stars stand for in a name that matches, as a Lua pattern; nil where they are too many
  --   steps      the steps that one place of a text takes, at most: see glob.steps
  function glob.compile(text)
    local pieces, plain, pattern, is_pattern = {}, {}, {}, false
    local function close()
      local as_pattern = table.concat(pattern)
      pieces[#pieces + 1] = {
        text = is_pattern and as_pattern or table.concat(plain), is_pattern = is_pattern, length = #pattern,
        pattern = as_pattern,
      }
      plain, pattern, is_pattern = {}, {}, false
    end
    local i, n = 1, #text
    while i <= n do
      local c = byte(text, i)
      if c == 42 then
        close()
        i = i + 1
      elseif c == 63 or c == 91 then
        local piece
        is_pattern = true
        if c == 63 then piece, i = '.', i + 1 else piece, i = class_of(text, i) end
        if not piece then return { never = true, steps = 0, ends_steps = 0 } end
        pattern[#pattern + 1] = piece
      else
        if c == 92 and i < n then i, c = i + 1, byte(text, i + 1) end
        plain[#plain + 1], pattern[#pattern + 1] = char(c), lua_byte(c)
        i = i + 1
      end
    end
    close()
    local stars, first = #pieces - 1, '^' .. pieces[1].pattern
    pieces.steps = 1
    for k = 2, stars do pieces.steps = max(pieces.steps, #pieces[k].text) end
    pieces.ends_steps = #pieces[1].text + #pieces[#pieces].text
    if stars == 1 then
      pieces.begins = first
    elseif stars == 2 then
      pieces.begins = first .. '.-' .. pieces[2].pattern
    end
    if stars > 0 and stars <= CAPTURES_MOST then
      local list = { first }
      for k = 2, stars do list[k] = '(.-)' .. pieces[k].pattern end
      pieces.captures = table.concat(list) .. '(.*)' .. pieces[#pieces].pattern .. '$'
    end
    return pieces
  end

  -- ends: what each name that matches a glob begins and ends with, as far as that is the same for all of them.
  function glob.ends(text, pieces)
    local last = pieces[#pieces]
    return match(text, '^[^%*%?%[\\]*'), last and not last.is_pattern and last.text or ''
  end

  -- begins_at: whether a piece stands at a place of a name.
  local function begins_at(piece, name, at)
    if not piece.is_pattern then return sub(name, at, at + piece.length - 1) == piece.text end
    return find(name, '^' .. piece.text, at) ~= nil
  end

  -- matches: whether a compiled glob matches a name. The first piece must begin it and the last must end it; those in
  -- between are found one after the other, each as far left as possible: no way back is ever needed.
  function glob.matches(pieces, name)
    if pieces.never then return false end
    local first, last, n, begins = pieces[1], pieces[#pieces], #name, pieces.begins
    if begins then
      local _, to = find(name, begins)
      if not to or last.length == 0 then return to ~= nil end
      return to + last.length <= n and begins_at(last, name, n - last.length + 1)
    end
    if #pieces == 1 then return n == first.length and begins_at(first, name, 1) end
    if n < first.length + last.length or not begins_at(first, name, 1) then return false end
    local at, stop = first.length + 1, n - last.length
    for i = 2, #pieces - 1 do
      local piece = pieces[i]
      if piece.length > 0 then
        at = find(name, piece.text, at, not piece.is_pattern)
        if not at or at + piece.length - 1 > stop then return false end
        at = at + piece.length
      end
    end
    return begins_at(last, name, stop + 1)
  end

  -- steps: how many steps `matches` takes for a text of so many bytes, at most. A piece is compared at each place of
  -- the text at most once, because no piece is ever looked for again. A step is a few nanoseconds: an item of a class,
  -- or a byte. So a call that compares many texts of other people knows when it has done enough.
  function glob.steps(pieces, length)
    return pieces.steps * length + pieces.ends_steps
  end

  -- texts_in: how many texts of so many bytes a call may compare with this glob: as many as take STEPS_MOST, and at
  -- least one.
  function glob.texts_in(pieces, length)
    return max(1, floor(STEPS_MOST / max(1, glob.steps(pieces, length))))
  end

  -- captures: what each star of a glob stands for in a name that matches it, leftmost shortest: the last star takes the
  -- rest.
  function glob.captures(pieces, name)
    if pieces.captures then return { match(name, pieces.captures) } end
    local found, at = {}, pieces[1].length + 1
    for i = 2, #pieces do
      local piece, to = pieces[i], nil
      if i == #pieces then
        to = #name - piece.length + 1
      elseif piece.length == 0 then
        to = at
      else
        to = find(name, piece.text, at, not piece.is_pattern)
      end
      found[i - 1] = sub(name, at, to - 1)
      at = to + piece.length
    end
    return found
  end
end
