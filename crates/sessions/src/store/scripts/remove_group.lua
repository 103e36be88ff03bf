-- Ends all sessions of a group.
-- KEYS[1] the group; KEYS[2] stem of sessions: their ids are the members of the group.
-- ARGV[1] the channel on which ends are published.
-- Reply: how many sessions there were. Their other groups keep the dangling ids until those expire.
local ended = 0
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  ended = ended + redis.call('DEL', KEYS[2] .. name)
  redis.call('PUBLISH', ARGV[1], name)
end
redis.call('DEL', KEYS[1])
return ended
