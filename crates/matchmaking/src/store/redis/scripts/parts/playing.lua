-- Reads the tickets of players, for the scripts that know of them.
-- KEYS[1..4] as in preamble.lua. The key of a player is a hash of ticket → queue. It is derived: what counts is whether a ticket is
-- there. `presence` is a sorted set of tickets by when they are overdue.
-- ARGV: none of its own.
-- Defines: `each_ticket`, `now`, `keep`.

-- Calls `handle(id, queue, data, assignment, waits)` for each ticket of a player that is still there, and forgets the others.
-- `tickets` and `assignments` are stems: the ids are learned from the hash.
local function each_ticket(player, presence, tickets, assignments, handle)
  local listed = call('HGETALL', player)
  for at = 1, #listed, 2 do
    local id = listed[at]
    local data, assignment = call('GET', tickets .. id), call('GET', assignments .. id)
    if data then
      handle(id, listed[at + 1], data, assignment, not assignment and call('SISMEMBER', all, id) == 1)
    else
      call('HDEL', player, id)
      call('ZREM', presence, id)
    end
  end
end

-- Milliseconds since the epoch.
local function now()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Lets a key live for at least so long, in ms.
local function keep(key, life)
  if call('PTTL', key) < tonumber(life) then call('PEXPIRE', key, life) end
end
