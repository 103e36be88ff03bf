-- Gives a player a ticket in a queue: the one that is there, or a new one.
-- ARGV[3] user; ARGV[4] queue; ARGV[5] the assigned ticket that the new one replaces, or nothing.
-- ARGV[6] to ARGV[9] the new ticket: id, lifetime in ms, creation time in µs, data.
-- ARGV[10] how long the player's key is kept at least, in ms; ARGV[11] after how many ms without a stream the ticket is
-- cancelled, or nothing; ARGV[12..] the queues beside which it may wait.
-- Returns 'ticket', id, data, and the assignment if there is one; or 'elsewhere', id, queue of a ticket that is in the way.
-- Keeps: however many ask at once, a player has one ticket in a queue, and waits in several only where all of them allow it. The
-- ticket and all that is known of it are written together or not at all.
local user, name, replaces, id = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local beside = {}
for at = 12, #ARGV do beside[ARGV[at]] = true end

local waiting, assigned, elsewhere
local done = {}
each_ticket(user, function(other, of, data, assignment, waits)
  if of ~= name then
    if waits and not beside[of] then elsewhere = { 'elsewhere', other, of, false } end
  elseif waits then
    waiting = { 'ticket', other, data, false }
  elseif assignment and other ~= replaces then
    assigned = { 'ticket', other, data, assignment }
  else
    done[#done + 1] = other
  end
end)
if waiting or assigned or elsewhere then return waiting or assigned or elsewhere end

if not call('SET', prefix .. id, ARGV[9], 'NX', 'PX', ARGV[7]) then
  return redis.error_reply('TAKEN there is a ticket of this id')
end
take_part({ id }, { ARGV[8], id })
-- What was replaced does not come back when the new one has gone.
for _, other in ipairs(done) do
  call('HDEL', player(user), other)
  call('ZREM', presence, other)
end
call('HSET', player(user), id, name)
keep(player(user), ARGV[10])
if ARGV[11] ~= '' then
  call('ZADD', presence, now() + tonumber(ARGV[11]), id)
  keep(presence, ARGV[10])
end
return { 'ticket', id, ARGV[9], false }
