-- Takes the lock under its documented name, and under the names that rueidislock, minimatch's lock library, uses (three
-- keys, of which it needs two).
-- KEYS[1] fetchTicketsLock; KEYS[2..4] the library's keys.
-- ARGV[1] token; ARGV[2] lifetime in ms.
-- Reply: 1 if we hold the lock, else 0.
-- Keeps: all keys are taken, or none.
if redis.call('EXISTS', unpack(KEYS)) > 0 then return 0 end
for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
return 1
