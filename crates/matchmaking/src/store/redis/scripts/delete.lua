-- Cancels a ticket.
-- KEYS[1..4] as in preamble.lua; KEYS[5] the ticket; KEYS[6] its assignment.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of cancelled tickets.
-- Reply: the result of `cancel`.
return cancel(KEYS[5], KEYS[6], ARGV[2])
