-- Lists the tickets of a player that wait, or that were assigned and can still be read.
-- KEYS[1..4] as in preamble.lua; KEYS[5] the player; KEYS[6] presence; KEYS[7] stem of tickets and
-- KEYS[8] stem of assignments: the ids come from KEYS[5].
-- ARGV[1] as in preamble.lua.
-- Reply: for each ticket its id, data, and the assignment if there is one.
local reply = {}
each_ticket(KEYS[5], KEYS[6], KEYS[7], KEYS[8], function(id, _, data, assignment, waits)
  if waits or assignment then reply[#reply + 1] = { id, data, assignment } end
end)
return reply
