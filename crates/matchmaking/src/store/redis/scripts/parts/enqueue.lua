-- Adds new tickets to matchmaking.
-- KEYS[1..4] as in preamble.lua.
-- ARGV: none of its own.
-- Defines: `enqueue`.
-- Keeps: set, queue and ticketChanges are written together.
-- `members` are ids whose data has been written; `scored` holds the same ids, each after its creation time. Wakes one
-- engine of the set `idle` through its channel: `wake` followed by its name.
local function enqueue(members, scored, idle, wake)
  call('SADD', all, unpack(members))
  call('ZADD', queue, unpack(scored))
  changed('+', members)
  -- A dead engine receives nothing; try the next one.
  for _ = 1, 4 do
    local engine = call('SPOP', idle)
    if not engine or call('PUBLISH', wake .. engine, '') > 0 then break end
  end
end
