-- Adds tickets that an engine holds to backfills of rule sets, for each backfill all of them or none.
-- KEYS[1..4] as in preamble.lua; KEYS[5] claimNumber; KEYS[6] backfillAcks; then the backfills; then the tickets of all;
-- then the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many ms without an acknowledgement a backfill expires; ARGV[3] after how many
-- seconds a pending ticket is active again; ARGV[4] number of backfills; then for each: the generation that it must have, the
-- claim that holds the tickets, the number of tickets, and the seat of each as JSON.
-- Reply: for each backfill two numbers: 0 if the tickets joined, -1 if the backfill prevents it, else the position (from 1) of
-- the first ticket that does; and 1 if that ticket is held by another claim, else 0.
-- Keeps: a ticket of a backfill was held by the engine until this step; claim, seats and open places are one step.
local acks, expiry, timeout, count = KEYS[6], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local second, ticket, arg, reply = call('TIME')[1], 6 + count, 5, {}
for at = 1, count do
  local key, claim, size = KEYS[6 + at], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local ids, obstacle, is_other = {}, 0, 0
  if call('HGET', key, 'generation') ~= ARGV[arg] or call('HEXISTS', key, 'teams') == 0
    or backfill_state(acks, key, expiry) ~= 'live' then
    obstacle = -1
  end
  for i = 1, size do
    local data = KEYS[ticket + i]
    ids[i] = id_of(data)
    local score = call('ZSCORE', pending, ids[i])
    local is_ours = is_claim(score, claim)
    if obstacle == 0 and (not is_ours or call('SISMEMBER', all, ids[i]) == 0 or call('EXISTS', data) == 0) then
      obstacle, is_other = i, score and not is_ours and 1 or 0
    end
  end
  if obstacle == 0 then
    -- One of them may have left this backfill before.
    waiting_tickets(key)
    local own = claim_in(second, next_number(KEYS[5], false, 2 * timeout))
    for i, id in ipairs(ids) do
      call('ZADD', pending, own, id)
      take_seat(key, id, ARGV[arg + 2 + i])
    end
    changed('p', ids, own)
    hold_tickets(key, ids)
    call('HINCRBY', key, 'generation', 1)
    changed('bc', { backfill_id(key) })
  end
  reply[at] = { obstacle, is_other }
  ticket, arg = ticket + size, arg + 3 + size
end
return reply
