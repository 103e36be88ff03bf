-- Cancels a ticket, and ends its ready check if it is in one.
-- KEYS[1..4] as in preamble.lua; KEYS[5] the ticket; KEYS[6] its assignment; KEYS[7] readyChecks; KEYS[8] readyRevision;
-- KEYS[9] stem of checks, KEYS[10] stem of pointers, KEYS[11] stem of tickets and KEYS[12] stem of assignments: the ids come from
-- the check; KEYS[13] the pointer of the ticket.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of news of ready checks; ARGV[3] the channel of cancelled tickets; ARGV[4] how
-- long the end of a ready check is remembered in ms.
-- Reply: the result of `cancel`, and 1 if a ready check has ended, else 0.
local cancelled = cancel(KEYS[5], KEYS[6], ARGV[3])
return { cancelled, cancelled == 1 and leave_check(ready_keys(7, 2), id_of(KEYS[5])) or 0 }
