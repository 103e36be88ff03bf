-- The tickets of a player: those that wait, and those that were assigned and can still be read.
-- ARGV[3] user.
-- Returns for each ticket its id, data, and the assignment if there is one.
local reply = {}
each_ticket(ARGV[3], function(id, _, data, assignment, waits)
  if waits or assignment then reply[#reply + 1] = { id, data, assignment } end
end)
return reply
