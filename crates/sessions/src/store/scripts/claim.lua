-- Claims the lease to refresh a session.
-- KEYS[1] the session.
-- ARGV[1] the version that was read; ARGV[2] a fencing token; ARGV[3] the length of the lease in ms.
-- Reply: 'yours', 'busy' (another process holds the lease), 'moved' (the session was refreshed since) or 'gone'.
-- Keeps: one holder at a time, by Redis's clock.
local found = redis.call('HMGET', KEYS[1], 'version', 'leased_until')
if not found[1] then return 'gone' end
if found[1] ~= ARGV[1] then return 'moved' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if found[2] and tonumber(found[2]) > now then return 'busy' end
redis.call('HSET', KEYS[1], 'fence', ARGV[2], 'leased_until', string.format('%.0f', now + tonumber(ARGV[3])))
return 'yours'
