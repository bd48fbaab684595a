-- needs: base, base.glob
-- Which of the [[bucket]] or [[budget]] entries of a record matches a name: the first one of the file.

local entry_index = {}
do
  -- of: the index of some entries, by what a name that matches them is, begins with or ends with: so few are compared
  -- with it. A *cut* is the part of a name from one byte to another; it is empty for globs that begin and end with a
  -- star.
  --   names   the first entry of each name
  --   cuts    { from, to, lists = by the text of that part: entries in the order of the file, each its place, and the
  --           glob that the name is compared with, nil where that text is all it asks for }
  --   cost    how many cuts and further comparisons a name takes, at most
  function entry_index.of(entries)
    local of, cut_of = { names = {}, cuts = {}, cost = 0 }, {}
    local function add(from, to, text, one)
      local which = from < 0 and from or to
      local cut = cut_of[which]
      if not cut then
        cut = { from = from, to = to, lists = {}, compared = 1 }
        of.cuts[#of.cuts + 1], cut_of[which] = cut, cut
      end
      local list = cut.lists[text] or {}
      cut.lists[text], list[#list + 1] = list, one
      if one.pieces then cut.compared = max(cut.compared, #list) end
    end
    for n, entry in ipairs(entries) do
      local kind, text = glob.kind(entry.match)
      if kind == 'name' then
        of.names[text] = of.names[text] or n
      elseif kind == 'prefix' then
        add(1, #text, text, { place = n })
      else
        local pieces = glob.compile(text)
        local first, last = glob.ends(text, pieces)
        local one = { place = n, pieces = pieces }
        if #first >= #last then add(1, #first, first, one) else add(-#last, -1, last, one) end
      end
    end
    for _, cut in ipairs(of.cuts) do of.cost = of.cost + cut.compared end
    return of
  end

  -- first_of: the place of the first of these entries that matches a name, where it comes before `first`; else `first`.
  local function first_of(entries, name, first)
    for i = 1, #entries do
      local one = entries[i]
      if one.place >= first then break end
      if not one.pieces or glob.matches(one.pieces, name) then return one.place end
    end
    return first
  end

  -- first_match: the place of the first entry that matches a name, or `huge`.
  function entry_index.first_match(of, name)
    local first, cuts = of.names[name] or huge, of.cuts
    for i = 1, #cuts do
      local cut = cuts[i]
      local entries = cut.lists[sub(name, cut.from, cut.to)] -- all of a name that is shorter: no entry asks for that
      if entries then first = first_of(entries, name, first) end
    end
    return first
  end
end
