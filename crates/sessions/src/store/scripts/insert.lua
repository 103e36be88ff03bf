-- Begins a session.
-- KEYS[1] session, KEYS[2..] its groups. ARGV: its name, its record, when it ends (ms), how long it is kept unused (ms), how long its
-- groups are kept at least (ms).
-- Keeps: a session that is there is in all its groups; a group forgets what has ended.
redis.call('HSET', KEYS[1], 'record', ARGV[2], 'version', 0, 'ends_at', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for at = 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[at], '-inf', now)
  redis.call('ZADD', KEYS[at], ARGV[3], ARGV[1])
  -- As long as the longest of its sessions.
  if redis.call('PTTL', KEYS[at]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[at], ARGV[5]) end
end
