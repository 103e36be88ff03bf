-- Reads and changes backfills.
-- KEYS[1..4] as in preamble.lua. A backfill is a hash: `generation`; `fixed`, `fields` and `persistent`, which together
-- are the encoded message without its generation; `w:ID` for each ticket that waits for the game server, with the claim
-- that holds it (its score in `pending`); `a:ID` for each assigned ticket that no answer has listed yet. That of a rule set
-- also has `match`, what made its match; `teams`, a list of teams with their open places; `s:ID` for each ticket in the match,
-- its seat. These are JSON. `acks` is the sorted set of backfills by the millisecond of their last acknowledgement.
-- ARGV: none of its own.
-- Defines: `time_in_ms`, `backfill_id`, `backfill_state`, `keep_backfill`, `write_backfill`, `change_backfill`, `take_seat`,
-- `leave_backfill`, `waiting_tickets`, `release_tickets`, `hold_tickets`.
-- Keeps: a ticket belongs to a backfill only while it is pending under the claim that the backfill knows; the places that are
-- not open are those of its seats.

local function time_in_ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the id of a backfill: the name of its key without `backfill:`.
local function backfill_id(key) return string.sub(id_of(key), 10) end

-- Returns 'live' if the game server has acknowledged the backfill within the last `expiry` ms, else 'expired' or 'gone'.
local function backfill_state(acks, key, expiry)
  if call('EXISTS', key) == 0 then return 'gone' end
  local at = call('ZSCORE', acks, backfill_id(key))
  if at and tonumber(at) + tonumber(expiry) > time_in_ms() then return 'live' end
  return 'expired'
end

-- Records an acknowledgement. Afterwards the keys outlive every ticket that may be added before the backfill expires.
local function keep_backfill(acks, key, life)
  local at = time_in_ms()
  call('ZADD', acks, at, backfill_id(key))
  call('PEXPIRE', key, life)
  call('PEXPIRE', acks, life)
  changed('bk', { backfill_id(key) }, at)
end

local function write_backfill(acks, key, life, fixed, fields, persistent)
  call('HSET', key, 'generation', 1, 'fixed', fixed, 'fields', fields, 'persistent', persistent)
  keep_backfill(acks, key, life)
end

-- Returns the new generation.
local function change_backfill(key, fields)
  call('HSET', key, 'fields', fields)
  changed('bc', { backfill_id(key) })
  return call('HINCRBY', key, 'generation', 1)
end

-- Changes how many places of the team of a seat are open.
local function open_places(key, seat, sign)
  seat = cjson.decode(seat)
  local teams = cjson.decode(call('HGET', key, 'teams'))
  for _, team in ipairs(teams) do
    if team.name == seat.team then team.open = team.open + sign * seat.size end
  end
  call('HSET', key, 'teams', cjson.encode(teams))
end

-- Notes the seat of a ticket that joins.
local function take_seat(key, id, seat)
  open_places(key, seat, -1)
  call('HSET', key, 's:' .. id, seat)
end

-- Forgets a ticket that waited and has left the backfill, and opens its places again. An assigned ticket keeps its seat.
local function leave_backfill(key, id)
  if call('HDEL', key, 'w:' .. id) == 0 then return end
  local seat = call('HGET', key, 's:' .. id)
  if not seat then return end
  open_places(key, seat, 1)
  call('HDEL', key, 's:' .. id)
  changed('bc', { backfill_id(key) })
end

-- Returns the tickets that are still pending under the claim that the backfill knows, and forgets the others.
local function waiting_tickets(key)
  local stored, ids = call('HGETALL', key), {}
  for at = 1, #stored, 2 do
    if string.sub(stored[at], 1, 2) == 'w:' then
      local id = string.sub(stored[at], 3)
      if call('ZSCORE', pending, id) == stored[at + 1] then
        ids[#ids + 1] = id
      else
        leave_backfill(key, id)
      end
    end
  end
  return ids
end

-- Makes the waiting tickets active again. Returns how many there were.
local function release_tickets(key)
  local ids = waiting_tickets(key)
  for _, id in ipairs(ids) do
    call('ZREM', pending, id)
    leave_backfill(key, id)
  end
  changed('r', ids)
  return #ids
end

-- Adds tickets that were just claimed.
local function hold_tickets(key, ids)
  for _, id in ipairs(ids) do call('HSET', key, 'w:' .. id, call('ZSCORE', pending, id)) end
end
