-- Ends a session.
-- KEYS[1] the session; KEYS[2..] its groups.
-- ARGV[1] its id; ARGV[2] the channel on which ends are published; ARGV[3] the message: the id, and " replaced" after a new sign-in.
-- Reply: nothing.
redis.call('DEL', KEYS[1])
for at = 2, #KEYS do redis.call('ZREM', KEYS[at], ARGV[1]) end
redis.call('PUBLISH', ARGV[2], ARGV[3])
