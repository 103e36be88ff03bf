-- Gives tickets that another program wrote their place in the queue.
-- ARGV[3..] for each ticket: creation time in µs, id.
-- Returns how many were adopted.
-- Keeps: only what takes part is in the queue.
local adopted = 0
for at = 3, #ARGV, 2 do
  if call('SISMEMBER', all, ARGV[at + 1]) == 1 then
    adopted = adopted + call('ZADD', queue, 'NX', ARGV[at], ARGV[at + 1])
  end
end
return adopted
