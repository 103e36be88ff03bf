-- Records that the game server of a backfill has received assigned tickets. Deletes a backfill of a rule set that is full.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks; KEYS[6] the backfill.
-- ARGV[1] as in preamble.lua; ARGV[2..] ids of tickets.
-- Reply: 1 if the backfill was deleted, else 0.
-- Keeps: a backfill with a ticket that is not assigned, or that no answer has listed yet, stays.
local acks, key = KEYS[5], KEYS[6]
for at = 2, #ARGV do call('HDEL', key, 'a:' .. ARGV[at]) end
if call('HEXISTS', key, 'teams') == 0 or #waiting_tickets(key) > 0 then return 0 end
for _, team in ipairs(cjson.decode(call('HGET', key, 'teams'))) do
  if team.open > 0 then return 0 end
end
for _, field in ipairs(call('HKEYS', key)) do
  if string.sub(field, 1, 2) == 'a:' then return 0 end
end
call('DEL', key)
call('ZREM', acks, backfill_id(key))
changed('bd', { backfill_id(key) })
return 1
