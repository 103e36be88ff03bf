-- Ends a session.
-- KEYS[1] session, KEYS[2..] its groups. ARGV: its name, the channel that tells of ends.
redis.call('DEL', KEYS[1])
for at = 2, #KEYS do redis.call('ZREM', KEYS[at], ARGV[1]) end
redis.call('PUBLISH', ARGV[2], ARGV[1])
