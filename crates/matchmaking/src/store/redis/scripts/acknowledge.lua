-- Records that the game server of a backfill is alive, and lists the tickets that it has to assign.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks; KEYS[6] the backfill.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many ms without an acknowledgement a backfill expires; ARGV[3] lifetime
-- of the keys in ms.
-- Reply: 'gone', 'expired' or 'live'; generation, fixed, fields and persistent; what made its match, and its teams, empty unless
-- it is of a rule set; the waiting tickets; their seats, empty ones without a rule set; and the assigned tickets that no answer
-- has listed yet. All but the first are empty if it is not live.
local acks, key = KEYS[5], KEYS[6]
local state = backfill_state(acks, key, ARGV[2])
if state ~= 'live' then return { state, 0, '', '', '', '', '', {}, {}, {} } end
keep_backfill(acks, key, ARGV[3])
local waiting, seats, unlisted = waiting_tickets(key), {}, {}
local parts = call('HMGET', key, 'generation', 'fixed', 'fields', 'persistent', 'match', 'teams')
for i, id in ipairs(waiting) do seats[i] = parts[6] and call('HGET', key, 's:' .. id) or '' end
for _, field in ipairs(call('HKEYS', key)) do
  if string.sub(field, 1, 2) == 'a:' then unlisted[#unlisted + 1] = string.sub(field, 3) end
end
return { state, parts[1], parts[2], parts[3], parts[4], parts[5] or '', parts[6] or '', waiting, seats, unlisted }
