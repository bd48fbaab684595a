-- needs: base, base.glob
-- Which of the [[bucket]] or [[budget]] entries of a record matches a name: the first one of the file.

local entry_index = {}
do
  -- of: the index of some entries, by what a name that matches them is, begins with or ends with: so few are compared
  -- with it. `names` has the first entry of each name. `begins` and `ends` have { length, lists of entries by their
  -- text of that length }; `others` are the entries without such a text. An entry is { place, and the glob that it is
  -- compared with, nil where its text is all it asks for }. `cost` is how often a name is cut, and compared with a glob
  -- once more than at its first one of a text, at most.
  function entry_index.of(entries)
    local of = { names = {}, begins = {}, ends = {}, others = {} }
    local groups_of, longest = { [of.begins] = {}, [of.ends] = {} }, { [of.begins] = 1, [of.ends] = 1 }
    local function add(groups, text, one)
      local group = groups_of[groups][#text]
      if not group then
        group = { length = #text, lists = {} }
        groups[#groups + 1], groups_of[groups][#text] = group, group
      end
      local list = group.lists[text] or {}
      group.lists[text], list[#list + 1] = list, one
      if one.pieces then longest[groups] = max(longest[groups], #list) end
    end
    for n, entry in ipairs(entries) do
      local kind, text = glob.kind(entry.match)
      if kind == 'name' then
        of.names[text] = of.names[text] or n
      elseif kind == 'prefix' then
        add(of.begins, text, { place = n })
      else
        local pieces = glob.compile(text)
        local first, last = glob.ends(text, pieces)
        local one = { place = n, pieces = pieces }
        if #first == 0 and #last == 0 then
          of.others[#of.others + 1] = one
        elseif #first >= #last then
          add(of.begins, first, one)
        else
          add(of.ends, last, one)
        end
      end
    end
    of.cost = #of.begins + #of.ends + longest[of.begins] + longest[of.ends] - 2 + #of.others
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
    local first, begins, ends = of.names[name] or huge, of.begins, of.ends
    for i = 1, #begins do
      local entries = begins[i].length <= #name and begins[i].lists[sub(name, 1, begins[i].length)]
      if entries then first = first_of(entries, name, first) end
    end
    for i = 1, #ends do
      local entries = ends[i].length <= #name and ends[i].lists[sub(name, -ends[i].length)]
      if entries then first = first_of(entries, name, first) end
    end
    return of.others[1] and first_of(of.others, name, first) or first
  end
end
