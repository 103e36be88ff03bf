-- Records that these players have a stream open now.
-- KEYS[1..4] as in preamble.lua; KEYS[5] presence; KEYS[6] stem of tickets and KEYS[7] stem of assignments:
-- the ids come from KEYS[8..]; KEYS[8..] the players.
-- ARGV[1] as in preamble.lua; ARGV[2..] for each queue that cancels the tickets of absent players: its name and its
-- timeout in ms.
-- Reply: OK.
-- Keeps: no ticket becomes overdue earlier than before; a cancelled or assigned ticket does not come back.
local presence, after = KEYS[5], {}
for at = 2, #ARGV, 2 do after[ARGV[at]] = tonumber(ARGV[at + 1]) end
local time = now()
for at = 8, #KEYS do
  each_ticket(KEYS[at], presence, KEYS[6], KEYS[7], function(id, name, _, assignment)
    local of_member = presence_of(id, KEYS[at])
    if assignment then
      call('ZREM', presence, id, of_member)
    elseif after[name] then
      local due = time + after[name]
      call('ZADD', presence, 'XX', 'GT', due, id, due, of_member)
    end
  end)
end
return redis.status_reply('OK')
