-- needs: base, context
-- Entries of the dead stream: jobs that are given up, and texts that dripd did not write. The fields of an entry are
-- spelled only here.

local dead_entry = {}
do
  -- add: add a job to the dead stream and count it. `more` is a list of further fields, names and values by turns, or
  -- nil. Replies an error where the stream does not take it, else nil.
  -- writes  the dead stream      cost  1 call
  function dead_entry.add(ctx, bucket, job, attempt, id, reason, more)
    local added = pcall_redis('XADD', ctx.k.dead, '*', 'bucket', bucket, 'job', job, 'attempt', attempt, 'id', id,
      'reason', reason,
      unpack(more or {}))
    local err = base.is_error(added)
    -- A malformed one was never dispatched.
    if not err then context.count(ctx, reason == 'malformed' and 'malformed' or 'dead', 1) end
    return err
  end
end
