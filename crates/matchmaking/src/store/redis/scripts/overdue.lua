-- Lists the tickets of players who have been absent for too long.
-- KEYS[1..4] as in preamble.lua; KEYS[5] presence.
-- ARGV[1] as in preamble.lua; ARGV[2] the maximum number of tickets.
-- Reply: the entries: the id of a ticket, or of a party's ticket with a member.
return call('ZRANGEBYSCORE', KEYS[5], '-inf', now(), 'LIMIT', 0, ARGV[2])
