-- Cancels a ticket.
-- KEYS[1..4] as in preamble.lua; KEYS[5] the ticket; KEYS[6] its assignment.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of tickets that are gone.
-- Reply: as `cancel` returns.
return cancel(KEYS[5], KEYS[6], ARGV[2])
