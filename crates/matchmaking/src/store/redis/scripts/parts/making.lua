-- Makes tickets, for the scripts that do.
-- KEYS[1..4] as in preamble.lua.
-- ARGV: none of its own.
-- Defines: `take_part`.
-- Keeps: set and queue are written together.
-- `members` are ids whose data has been written, `scored` the same with their creation time before each. Wakes one engine of the
-- set `idle`, by its channel: `wake` and its name.
local function take_part(members, scored, idle, wake)
  call('SADD', all, unpack(members))
  call('ZADD', queue, unpack(scored))
  -- An engine that is gone receives nothing: then the next one.
  for _ = 1, 4 do
    local engine = call('SPOP', idle)
    if not engine or call('PUBLISH', wake .. engine, '') > 0 then break end
  end
end
