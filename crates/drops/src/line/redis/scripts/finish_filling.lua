-- Marks a line as filled.
-- KEYS[1] its epoch; KEYS[2] the filling under way.
-- ARGV[1] the caller's filling, which becomes the epoch.
-- Reply: 1, or 0 if the filling was lost.
-- Keeps: only a line that was filled to the end has an epoch.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
