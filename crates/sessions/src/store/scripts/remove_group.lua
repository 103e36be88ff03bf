-- Ends all sessions of a group.
-- KEYS[1] group. ARGV: what the keys of sessions begin with, the channel that tells of ends.
-- Returns how many there were. Their other groups keep the names, which lead nowhere, until those expire.
local ended = 0
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  ended = ended + redis.call('DEL', ARGV[1] .. name)
  redis.call('PUBLISH', ARGV[2], name)
end
redis.call('DEL', KEYS[1])
return ended
