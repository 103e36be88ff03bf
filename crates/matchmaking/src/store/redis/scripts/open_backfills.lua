-- Reads the backfills of rule sets that are live, with all seats.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks; KEYS[6..] the backfills.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many ms without an acknowledgement a backfill expires.
-- Reply: for each backfill its generation, what made its match, its teams, and then the id and the seat of each ticket; nothing
-- if it is not live or not of a rule set.
-- Keeps: a ticket that has left the backfill has no seat.
local reply = {}
for at = 6, #KEYS do
  local key, found = KEYS[at], {}
  if call('HEXISTS', key, 'teams') == 1 and backfill_state(KEYS[5], key, ARGV[2]) == 'live' then
    waiting_tickets(key)
    found = call('HMGET', key, 'generation', 'match', 'teams')
    local stored = call('HGETALL', key)
    for field = 1, #stored, 2 do
      if string.sub(stored[field], 1, 2) == 's:' then
        found[#found + 1] = string.sub(stored[field], 3)
        found[#found + 1] = stored[field + 1]
      end
    end
  end
  reply[at - 5] = found
end
return reply
