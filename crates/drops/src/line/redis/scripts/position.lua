-- Finds a player in the line.
-- KEYS[1] the line; KEYS[2] its epoch.
-- ARGV[1] user id.
-- Reply: nothing if the line has no epoch; else how many are before the player (-1 if the player is absent) and how many there are.
if redis.call('EXISTS', KEYS[2]) == 0 then return {} end
return { redis.call('ZRANK', KEYS[1], ARGV[1]) or -1, redis.call('ZCARD', KEYS[1]) }
