-- Deletes backfills and releases their tickets.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks; KEYS[6..] the backfills.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many ms without an acknowledgement a backfill expires, to delete only
-- expired ones, or empty.
-- Reply: how many backfills were deleted, and how many tickets were released.
-- Keeps: a backfill that was acknowledged in time stays.
local deleted, released, gone = 0, 0, {}
for at = 6, #KEYS do
  if ARGV[2] == '' or backfill_state(KEYS[5], KEYS[at], ARGV[2]) ~= 'live' then
    released = released + release_tickets(KEYS[at])
    deleted = deleted + call('DEL', KEYS[at])
    call('ZREM', KEYS[5], backfill_id(KEYS[at]))
    gone[#gone + 1] = backfill_id(KEYS[at])
  end
end
changed('bd', gone)
return { deleted, released }
