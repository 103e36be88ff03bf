-- Gives tickets that another program wrote their place in the queue.
-- KEYS[1..4] as in preamble.lua.
-- ARGV[1] as in preamble.lua; ARGV[2..] for each ticket: creation time in µs, id.
-- Reply: how many were adopted.
-- Keeps: only what takes part is in the queue.
local adopted = 0
for at = 2, #ARGV, 2 do
  if call('SISMEMBER', all, ARGV[at + 1]) == 1 then
    adopted = adopted + call('ZADD', queue, 'NX', ARGV[at], ARGV[at + 1])
  end
end
return adopted
