-- Renews the lease to refresh a session.
-- KEYS[1] the session.
-- ARGV[1] the fencing token; ARGV[2] the length of the lease from now on, in ms.
-- Reply: 1, or 0 if another process has claimed it since.
if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'leased_until', string.format('%.0f', now + tonumber(ARGV[2])))
return 1
