-- Returns a player's ticket in a queue, or creates it.
-- KEYS[1..4] as in preamble.lua; KEYS[5] idleEngines; KEYS[6] the player; KEYS[7] presence; KEYS[8] the new ticket;
-- KEYS[9] stem of tickets and KEYS[10] stem of assignments: the ids come from KEYS[6].
-- ARGV[1] as in preamble.lua; ARGV[2] the prefix of the engines' channels; ARGV[3] queue; ARGV[4] the assigned ticket
-- that the new one replaces, or empty; ARGV[5] to ARGV[7] lifetime in ms, creation time in µs and data of the new
-- ticket; ARGV[8] the minimum lifetime of the player's key in ms; ARGV[9] after how many ms without a stream the ticket
-- is cancelled, or empty; ARGV[10..] the other queues in which the player may wait at the same time.
-- Reply: 'ticket', id, data, and the assignment if there is one; or 'elsewhere', id, queue of the ticket that prevents
-- a new one.
-- Keeps: however many requests arrive at once, a player has one ticket in a queue, and waits in several queues only if
-- all of them allow it. The ticket and everything stored about it are written together or not at all.
local player, presence = KEYS[6], KEYS[7]
local name, replaces, id = ARGV[3], ARGV[4], id_of(KEYS[8])
local allowed = {}
for at = 10, #ARGV do allowed[ARGV[at]] = true end

local waiting, assigned, elsewhere
local done = {}
each_ticket(player, presence, KEYS[9], KEYS[10], function(other, of, data, assignment, waits)
  if of ~= name then
    if waits and not allowed[of] then elsewhere = { 'elsewhere', other, of, false } end
  elseif waits then
    waiting = { 'ticket', other, data, false }
  elseif assignment and other ~= replaces then
    assigned = { 'ticket', other, data, assignment }
  else
    done[#done + 1] = other
  end
end)
if waiting or assigned or elsewhere then return waiting or assigned or elsewhere end

if not call('SET', KEYS[8], ARGV[7], 'NX', 'PX', ARGV[5]) then
  return redis.error_reply('TAKEN there is a ticket of this id')
end
enqueue({ id }, { ARGV[6], id }, KEYS[5], ARGV[2], ARGV[5])
-- A replaced ticket must not reappear when the new one is gone.
for _, other in ipairs(done) do
  call('HDEL', player, other)
  call('ZREM', presence, other)
end
call('HSET', player, id, name)
extend_ttl(player, ARGV[8])
if ARGV[9] ~= '' then
  call('ZADD', presence, now() + tonumber(ARGV[9]), id)
  extend_ttl(presence, ARGV[8])
end
return { 'ticket', id, ARGV[7], false }
