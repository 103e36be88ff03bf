-- Empties the line and begins a new fill.
-- KEYS[1] the line; KEYS[2] its epoch; KEYS[3] the token of the fill in progress.
-- ARGV[1] the new token; ARGV[2] its lease in ms.
-- Reply: 1, or 0 while another fill is in progress.
-- Keeps: a line that is being filled has no epoch.
if not redis.call('SET', KEYS[3], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
