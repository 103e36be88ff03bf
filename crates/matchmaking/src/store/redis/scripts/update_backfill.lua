-- Replaces the data of a backfill, whatever its generation, and releases its tickets.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks; KEYS[6] the backfill.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many ms without an acknowledgement a backfill expires; ARGV[3] fields;
-- ARGV[4] persistent.
-- Reply: 'gone', 'expired' or 'live'; if live also the new generation, fixed, and what made its match and its teams, which are
-- empty unless it is of a rule set.
-- Keeps: a ticket that is no longer in the backfill is active again, unless another claim holds it.
local state = backfill_state(KEYS[5], KEYS[6], ARGV[2])
if state ~= 'live' then return { state, 0, '', '', '' } end
release_tickets(KEYS[6])
call('HSET', KEYS[6], 'persistent', ARGV[4])
local generation, parts = change_backfill(KEYS[6], ARGV[3]), call('HMGET', KEYS[6], 'fixed', 'match', 'teams')
return { state, generation, parts[1], parts[2] or '', parts[3] or '' }
