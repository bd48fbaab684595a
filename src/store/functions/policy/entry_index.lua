-- needs: base, base.glob
-- Which of the [[bucket]] or [[budget]] entries of a record matches a name: the first one of the file.

local entry_index = {}
do
  -- of: the index of some entries, by what a name that matches them is, begins with or ends with: so few are compared
  -- with it. An *affix* is the beginning or the end of a name; it is empty where a match has no fixed text at either
  -- end.
  --   names     the first entry of each name
  --   affixes   { from, to, lists = by the text from that byte to that one: entries in the order of the file, each its
  --             place, and the glob that the name is compared with, nil where that text is all it asks for;
  --             compared = the most entries of one text up to its last glob, at least 1 }
  --   cost      affixes, and comparisons with a glob beyond the first one of each, at most
  function entry_index.of(entries)
    local of, affix_of = { names = {}, affixes = {}, cost = 0 }, {}
    local function add(from, to, text, one)
      local which = from < 0 and from or to
      local affix = affix_of[which]
      if not affix then
        affix = { from = from, to = to, lists = {}, compared = 1 }
        of.affixes[#of.affixes + 1], affix_of[which] = affix, affix
      end
      local list = affix.lists[text] or {}
      affix.lists[text], list[#list + 1] = list, one
      if one.pieces then affix.compared = max(affix.compared, #list) end
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
    for _, affix in ipairs(of.affixes) do of.cost = of.cost + affix.compared end
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
    local first, affixes = of.names[name] or huge, of.affixes
    for i = 1, #affixes do
      local affix = affixes[i]
      local entries = affix.lists[sub(name, affix.from, affix.to)] -- a shorter name is replied whole: it is no key
      if entries then first = first_of(entries, name, first) end
    end
    return first
  end
end
