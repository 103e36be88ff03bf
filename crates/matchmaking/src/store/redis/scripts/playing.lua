-- The tickets of players, for the scripts that know of them.
-- `player:USER` is a hash of ticket → queue. It is derived: what counts is whether a ticket is there.
local presence = prefix .. 'presence'
local function player(user) return prefix .. 'player:' .. user end

-- Calls `handle(id, queue, data, assignment, waits)` for each ticket of a player that is still there, and forgets the others.
local function each_ticket(user, handle)
  local listed = call('HGETALL', player(user))
  for at = 1, #listed, 2 do
    local id = listed[at]
    local data, assignment = call('GET', prefix .. id), call('GET', prefix .. 'assign:' .. id)
    if data then
      handle(id, listed[at + 1], data, assignment, not assignment and call('SISMEMBER', all, id) == 1)
    else
      call('HDEL', player(user), id)
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
