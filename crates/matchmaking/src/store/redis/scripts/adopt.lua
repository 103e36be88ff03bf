-- Adds tickets that another program wrote to the queue.
-- KEYS[1..4] as in preamble.lua.
-- ARGV[1] as in preamble.lua; ARGV[2..] for each ticket: creation time in µs, id.
-- Reply: how many were added.
-- Keeps: the queue contains only tickets that are in the set.
local adopted = 0
for at = 2, #ARGV, 2 do
  if call('SISMEMBER', all, ARGV[at + 1]) == 1 then
    adopted = adopted + call('ZADD', queue, 'NX', ARGV[at], ARGV[at + 1])
  end
end
return adopted
