-- Removes players who still have the given places.
-- KEYS[1] the line.
-- ARGV for each player: place, user id.
-- Reply: the number of removed players.
-- Keeps: a player who has left and joined again keeps the new place.
local removed = 0
for at = 1, #ARGV, 2 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[at + 1])
  if score and tonumber(score) == tonumber(ARGV[at]) then
    removed = removed + redis.call('ZREM', KEYS[1], ARGV[at + 1])
  end
end
return removed
