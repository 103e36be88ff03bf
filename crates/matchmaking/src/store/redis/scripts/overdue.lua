-- Lists the tickets whose players have been gone for too long.
-- KEYS[1..4] as in preamble.lua; KEYS[5] presence.
-- ARGV[1] as in preamble.lua; ARGV[2] how many at most.
-- Reply: their ids.
return call('ZRANGEBYSCORE', KEYS[5], '-inf', now(), 'LIMIT', 0, ARGV[2])
