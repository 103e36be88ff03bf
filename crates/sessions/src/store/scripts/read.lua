-- Reads a session and extends its life, but not beyond its end.
-- KEYS[1] the session.
-- ARGV[1] for how many ms it is kept unused.
-- Reply: its record and its version, or nothing.
local found = redis.call('HMGET', KEYS[1], 'record', 'version', 'ends_at')
if not found[1] then return false end
local time = redis.call('TIME')
local left = tonumber(found[3]) - (time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min(left, tonumber(ARGV[1]))))
return { found[1], tonumber(found[2]) }
