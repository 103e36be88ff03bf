-- Looks up a player's position in the line.
-- KEYS[1] the line; KEYS[2] its epoch.
-- ARGV[1] user id.
-- Reply: empty if the line has no epoch; else the number of players ahead (-1 if the player is not in the line) and the length of the line.
if redis.call('EXISTS', KEYS[2]) == 0 then return {} end
return { redis.call('ZRANK', KEYS[1], ARGV[1]) or -1, redis.call('ZCARD', KEYS[1]) }
