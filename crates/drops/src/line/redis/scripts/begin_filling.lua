-- Empties the line for somebody who is going to fill it.
-- KEYS[1] the line; KEYS[2] its epoch; KEYS[3] the filling under way.
-- ARGV[1] the new filling; ARGV[2] its lease in ms.
-- Reply: 1, or 0 while another filling is under way.
-- Keeps: a line that is being filled has no epoch.
if not redis.call('SET', KEYS[3], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
