-- Extends the lock.
-- KEYS[1..4] as in lock.lua.
-- ARGV[1] token; ARGV[2] lifetime in ms.
-- Reply: the number of keys on which we still hold the lock.
local held = 0
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then
    redis.call('PEXPIRE', key, ARGV[2])
    held = held + 1
  end
end
return held
