-- Reads the tickets of players.
-- KEYS[1..4] as in preamble.lua. The key of a player is a hash of ticket → queue. It is derived data: a ticket counts
-- only while it exists. `presence` is a sorted set of tickets by when they become overdue. A ticket of a party has an
-- entry for each member.
-- ARGV: none of its own.
-- Defines: `presence_of`, `each_ticket`, `now`, `extend_ttl`.

-- Returns the entry in `presence` of a party's ticket and the member with this key of a player: `ticket:user`.
local function presence_of(id, player) return id .. ':' .. string.sub(id_of(player), 8) end

-- Calls `handle(id, queue, data, assignment, waits)` for each existing ticket of a player, and removes the others from
-- the hash. `tickets` and `assignments` are stems: the ids come from the hash.
local function each_ticket(player, presence, tickets, assignments, handle)
  local listed = call('HGETALL', player)
  for at = 1, #listed, 2 do
    local id = listed[at]
    local data, assignment = call('GET', tickets .. id), call('GET', assignments .. id)
    if data then
      handle(id, listed[at + 1], data, assignment, not assignment and call('SISMEMBER', all, id) == 1)
    else
      call('HDEL', player, id)
      call('ZREM', presence, id, presence_of(id, player))
    end
  end
end

-- Returns the time in milliseconds since the Unix epoch.
local function now()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Extends the TTL of a key to at least `life` ms.
local function extend_ttl(key, life)
  if call('PTTL', key) < tonumber(life) then call('PEXPIRE', key, life) end
end
