-- Reads and ends ready checks.
-- KEYS[1..4] as in preamble.lua. A check is a hash: `claim` (the score of its tickets in `pending`), `tickets` (ids, separated by
-- spaces), `match`, `opened`, `deadline` and `complete` (when the last player accepted) in ms, `players`, `accepted`,
-- `taken` (how often it was taken), and `TICKET USER` for each player: '1' accepted, '0' not yet. `due` is the sorted set of
-- checks by the ms at which they need attention. A pointer leads from a ticket to its check: the id of the check, or after
-- its end '!', the reason and the players of the ticket.
-- ARGV: none of its own.
-- Defines: `ready_keys`, `ms`, `load_check`, `is_held`, `is_whole`, `has_accepted`, `state_of`, `publish_news`, `end_check`,
-- `counts_of`, `leave_check`.
-- Keeps: a ticket is in a check only while it is pending under the claim that the check knows. A check that ends releases its
-- tickets or cancels them; it never touches a ticket that it no longer holds.

-- Names the keys and arguments that begin at these positions.
local function ready_keys(key, arg)
  return {
    due = KEYS[key], revision = KEYS[key + 1], checks = KEYS[key + 2], pointers = KEYS[key + 3], tickets = KEYS[key + 4],
    assignments = KEYS[key + 5], channel = ARGV[arg], gone = ARGV[arg + 1], keep = ARGV[arg + 2],
  }
end

local function ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns a check, or nil if there is none of this id.
local function load_check(ready, id)
  local stored, check = call('HGETALL', ready.checks .. id), { id = id, key = ready.checks .. id, ids = {} }
  if #stored == 0 then return nil end
  for at = 1, #stored, 2 do check[stored[at]] = stored[at + 1] end
  for ticket in string.gmatch(check.tickets, '%S+') do check.ids[#check.ids + 1] = ticket end
  check.of = {}
  for _, ticket in ipairs(check.ids) do check.of[ticket] = {} end
  for at = 1, #stored, 2 do
    local ticket, user = string.match(stored[at], '^(%S+) (%S+)$')
    if ticket then table.insert(check.of[ticket], user) end
  end
  return check
end

local function is_held(check, ticket) return call('ZSCORE', pending, ticket) == check.claim end

-- Returns whether the check still holds all its tickets, and their data exists.
local function is_whole(ready, check)
  for _, ticket in ipairs(check.ids) do
    if not is_held(check, ticket) or call('EXISTS', ready.tickets .. ticket) == 0 then return false end
  end
  return true
end

-- Returns whether all players of a ticket have accepted.
local function has_accepted(check, ticket)
  for _, user in ipairs(check.of[ticket]) do
    if check[ticket .. ' ' .. user] ~= '1' then return false end
  end
  return true
end

-- Returns a ticket of an open check as text: the ticket, then each of its players with 1 or 0.
local function state_of(check, ticket)
  local players = {}
  for _, user in ipairs(check.of[ticket]) do players[#players + 1] = user .. '=' .. check[ticket .. ' ' .. user] end
  return ticket .. ':' .. table.concat(players, ',')
end

-- Returns what all players of a check see, as text.
local function counts_of(check)
  return check.id .. ' ' .. check.deadline .. ' ' .. check.accepted .. ' ' .. check.players
end

-- Publishes the states of tickets. A revision is higher than all before, also if the counter expired in between.
local function publish_news(ready, check, states)
  local revision = call('INCR', ready.revision)
  if revision == 1 then
    local time = call('TIME')
    revision = tonumber(time[1]) * 1000000 + tonumber(time[2])
    call('SET', ready.revision, string.format('%.0f', revision))
  end
  call('PEXPIRE', ready.revision, 172800000)
  local news = string.format('%.0f', revision) .. ' ' .. counts_of(check) .. ' ' .. table.concat(states, ' ')
  call('PUBLISH', ready.channel, news)
end

-- Ends a check. `why` is 'declined' (by `decliner`, which is cancelled), 'no-answer' (tickets with a silent player are
-- cancelled), 'lost' (a ticket left it) or 'settled'.
local function end_check(ready, check, why, decliner)
  local states, released, cancelled = {}, {}, {}
  for _, ticket in ipairs(check.ids) do
    local pointer, reason = ready.pointers .. ticket, nil
    if call('GET', pointer) == check.id then
      local exists = call('EXISTS', ready.tickets .. ticket) == 1
      if not exists then
        reason = 'expired'
        if is_held(check, ticket) then cancelled[#cancelled + 1] = ticket end
      elseif is_held(check, ticket) then
        if ticket == decliner then
          reason = 'declined'
        elseif why == 'no-answer' and not has_accepted(check, ticket) then
          reason = 'no-answer'
        end
        if reason then
          cancelled[#cancelled + 1] = ticket
        else
          released[#released + 1] = ticket
          reason = why == 'settled' and '' or 'not-everyone-accepted'
        end
      elseif call('EXISTS', ready.assignments .. ticket) == 1 then
        reason = 'accepted'
      elseif call('SISMEMBER', all, ticket) == 1 then
        reason = ''
      end
      -- Watchers of an assigned ticket receive the assignment.
      if reason and reason ~= 'accepted' then states[#states + 1] = ticket .. '!' .. reason end
      if reason and reason ~= '' then
        call('SET', pointer, '!' .. reason .. ' ' .. table.concat(check.of[ticket], ' '), 'PX', ready.keep)
      else
        call('DEL', pointer)
      end
    end
  end
  call('DEL', check.key)
  call('ZREM', ready.due, check.id)
  -- Before the tickets are cancelled, so that their watchers learn the reason first.
  if #states > 0 then publish_news(ready, check, states) end
  in_chunks(released, 1000, function(from, to) call('ZREM', pending, unpack(released, from, to)) end)
  changed('r', released)
  for _, ticket in ipairs(cancelled) do cancel(ready.tickets .. ticket, ready.assignments .. ticket, ready.gone) end
end

-- Ends the check of a ticket that was just cancelled. Returns 1 if there was one, else 0.
local function leave_check(ready, ticket)
  local id = call('GET', ready.pointers .. ticket)
  local check = id and string.sub(id, 1, 1) ~= '!' and load_check(ready, id)
  if not check then return 0 end
  call('DEL', ready.pointers .. ticket)
  end_check(ready, check, 'lost')
  return 1
end
