-- Writes what a refresh brought, and gives the right back.
-- KEYS[1] session. ARGV: the fence, the record, how long it is kept unused (ms).
-- Returns 1, or 0 if the session is gone or another has claimed it since: then nothing is written.
-- Keeps: a refresh that came too late overwrites nothing.
if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'record', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('HDEL', KEYS[1], 'fence', 'leased_until')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
