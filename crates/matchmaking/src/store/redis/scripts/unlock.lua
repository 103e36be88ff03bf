-- Releases the lock where we still hold it.
-- KEYS[1..4] as in lock.lua.
-- ARGV[1] token.
-- Reply: OK.
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return redis.status_reply('OK')
