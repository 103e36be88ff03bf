-- Creates a backfill.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks; KEYS[6] the backfill.
-- ARGV[1] as in preamble.lua; ARGV[2] lifetime of the keys in ms; ARGV[3] to ARGV[5] fixed, fields, persistent.
-- Reply: 1 if it exists now, 0 if another backfill has this id.
-- Keeps: repeating the call, as after a lost reply, changes nothing.
local fixed = call('HGET', KEYS[6], 'fixed')
if fixed then return fixed == ARGV[3] and 1 or 0 end
write_backfill(KEYS[5], KEYS[6], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return 1
