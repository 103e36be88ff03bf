-- Claims the right to refresh a session.
-- KEYS[1] the session.
-- ARGV[1] the version that was read; ARGV[2] a fence; ARGV[3] for how many ms the right is held.
-- Reply: 'yours', 'busy' (another holds it), 'moved' (it has been refreshed since) or 'gone'.
-- Keeps: one holder at a time, by the clock of Redis.
local found = redis.call('HMGET', KEYS[1], 'version', 'leased_until')
if not found[1] then return 'gone' end
if found[1] ~= ARGV[1] then return 'moved' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if found[2] and tonumber(found[2]) > now then return 'busy' end
redis.call('HSET', KEYS[1], 'fence', ARGV[2], 'leased_until', string.format('%.0f', now + tonumber(ARGV[3])))
return 'yours'
