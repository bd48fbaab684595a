-- needs: base, context, policy.forward
-- Marks of a list: which of the jobs that were sent to it (policy/forward) have been taken, and how old the others are.
-- A mark stands for the jobs sent about then. They are part of the room of their route (route/room).

local list_marks = {}
do
  local note = context.note

  local MARKS = 8 -- marks in one window, about
  local MARKS_MOST = 10 -- and in all: each keeps a job, which may be large
  local SEARCH_MOST = 100000 -- jobs are looked for in lists up to this length: it takes 1 ms or so

  -- add: note that jobs were sent to a list now: `upto` are sent by then, the last of them is `job`, and they left at
  -- `at`, or an eighth of a window later.
  function list_marks.add(ctx, r, window)
    local marks = r.marks
    local last = marks[#marks]
    if not last or ctx.now - last.at >= window / MARKS and #marks < MARKS_MOST then
      last = { at = ctx.now }
      marks[#marks + 1] = last
    end
    last.upto, last.job, last.is_repeated = r.sent, r.job, false
  end

  -- is_there: whether the last job of a mark is in the list; `is_counted`: the number of jobs in it says that it was
  -- taken. Where the job cannot be looked for that number tells, or, where others push into the list too, it counts as
  -- taken. A job that was sent again later is found as long as the later one is there.
  local function is_there(ctx, r, one, length, is_counted)
    if length == 0 or is_counted and r.is_shared then return false end
    local may_look = one.job and length <= SEARCH_MOST and (not one.is_repeated or r.is_shared)
    local count, err = nil, nil
    if may_look then count, err = forward.count_of(r.forward, one.job) end
    if count then return count > 0 end
    if err and r.is_shared then note(ctx, 'not-searched', r.stream, err) end
    return not is_counted and not r.is_shared
  end

  -- taken_of: how many marks, and how many of the sent jobs, have certainly been taken from a list of this length. Jobs
  -- are taken in order, so the marks are asked from the oldest one on. What the number of jobs says is not enough:
  -- somebody may have deleted jobs that were not the oldest ones. Marks that were not taken by that number are asked
  -- only where `asks`; with the window off it tells all. The third reply: a job is there that was taken by that number,
  -- so others were deleted, or somebody pushed it back. Changes nothing.
  -- cost   a search of the list for each mark that is gone, and one more; each is gone once
  function list_marks.taken_of(ctx, r, length, window, asks)
    local marks, gone, taken, is_odd = r.marks, max(r.gone, r.sent - length), 0, false
    while marks[taken + 1] do
      local one = marks[taken + 1]
      local is_counted = one.upto <= gone
      if not is_counted and not asks then break end
      if (window or asks) and is_there(ctx, r, one, length, is_counted) then
        is_odd = is_counted
        break
      end
      taken = taken + 1
    end
    return taken, taken > 0 and max(gone, marks[taken].upto) or gone, is_odd
  end

  -- drop: these many marks are taken.
  function list_marks.drop(r, taken)
    for _ = 1, taken do r.done = table.remove(r.marks, 1).upto end
  end
end
