-- Writes a refreshed session and releases the lease.
-- KEYS[1] the session.
-- ARGV[1] the fencing token; ARGV[2] the record; ARGV[3] for how many ms it is kept unused.
-- Reply: 1, or 0 if the session is gone or another process has claimed it since: then nothing is written.
-- Keeps: a late refresh overwrites nothing.
if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'record', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('HDEL', KEYS[1], 'fence', 'leased_until')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
