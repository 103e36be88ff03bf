-- Says of players that they have a stream open at this moment.
-- ARGV[3] how many queues cancel the tickets of players who are gone; then for each its name and after how many ms; then users.
-- Keeps: no ticket becomes overdue earlier than it was; a ticket that was cancelled or assigned does not come back.
local after, first = {}, 4 + 2 * tonumber(ARGV[3])
for at = 4, first - 1, 2 do after[ARGV[at]] = tonumber(ARGV[at + 1]) end
local time = now()
for at = first, #ARGV do
  each_ticket(ARGV[at], function(id, name, _, assignment)
    if assignment then
      call('ZREM', presence, id)
    elseif after[name] then
      call('ZADD', presence, 'XX', 'GT', time + after[name], id)
    end
  end)
end
return redis.status_reply('OK')
