-- Starts a session.
-- KEYS[1] the session; KEYS[2..] its groups.
-- ARGV[1] its id; ARGV[2] its record; ARGV[3] when it ends, in ms; ARGV[4] for how many ms it is kept unused; ARGV[5] for how many
-- ms its groups are kept at least.
-- Reply: nothing.
-- Keeps: an existing session is a member of all its groups; ended sessions leave their groups.
redis.call('HSET', KEYS[1], 'record', ARGV[2], 'version', 0, 'ends_at', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for at = 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[at], '-inf', now)
  redis.call('ZADD', KEYS[at], ARGV[3], ARGV[1])
  -- A group lives as long as the longest of its sessions.
  if redis.call('PTTL', KEYS[at]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[at], ARGV[5]) end
end
