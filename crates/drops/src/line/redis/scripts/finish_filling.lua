-- Marks a line as completely filled.
-- KEYS[1] its epoch; KEYS[2] the token of the fill in progress.
-- ARGV[1] the caller's token, which becomes the epoch.
-- Reply: 1, or 0 if the caller's lease was lost.
-- Keeps: only a completely filled line has an epoch.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
