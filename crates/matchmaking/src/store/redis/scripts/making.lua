-- Making tickets, for the scripts that do.
-- Keeps: set and queue are written together.
-- `members` are ids whose data has been written, `scored` the same with their creation time before each. Wakes one engine that
-- has nothing to do.
local function take_part(members, scored)
  call('SADD', all, unpack(members))
  call('ZADD', queue, unpack(scored))
  -- An engine that is gone receives nothing: then the next one.
  for _ = 1, 4 do
    local engine = call('SPOP', prefix .. 'idleEngines')
    if not engine or call('PUBLISH', prefix .. 'wake:' .. engine, '') > 0 then break end
  end
end
