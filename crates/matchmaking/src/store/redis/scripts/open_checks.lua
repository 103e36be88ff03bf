-- Opens ready checks, each as a whole or not at all: exchanges the claim of an engine for one that lasts until the deadline.
-- KEYS[1..4] as in preamble.lua; KEYS[5] readyChecks; KEYS[6] readyRevision; KEYS[7] stem of checks, KEYS[8] stem of pointers,
-- KEYS[9] stem of tickets and KEYS[10] stem of assignments: the ids are arguments; KEYS[11] claimNumber; then the keys of
-- refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of news; ARGV[3] the channel of cancelled tickets; ARGV[4] how long the end of
-- a check is remembered in ms; ARGV[5] after how many seconds a pending ticket is active again; then for each check: its id,
-- the claim that holds its tickets, the time for answers in ms, the encoded match, the number of tickets, and for each
-- ticket its id, the number of its players and their ids.
-- Reply: for each check two numbers: 0 if it was opened, else the position (from 1) of the first ticket that prevents it; and
-- 1 if that ticket is held by another claim, else 0.
-- Keeps: a ticket of a check is in matchmaking and was held by the engine until this step; no ticket is in two checks.
local ready, counter, timeout = ready_keys(5, 2), KEYS[11], tonumber(ARGV[5])
local now, reply, at = ms(), {}, 6
while at <= #ARGV do
  local id, claim, time, match, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3], tonumber(ARGV[at + 4])
  at = at + 5
  local check = { id = id, key = ready.checks .. id, ids = {}, of = {}, accepted = '0', deadline = string.format('%.0f', now + time) }
  local fields, players, due, obstacle, is_other = {}, 0, now + time, 0, 0
  for i = 1, count do
    local ticket, users = ARGV[at], tonumber(ARGV[at + 1])
    check.ids[i], check.of[ticket] = ticket, {}
    for player = 1, users do
      local user = ARGV[at + 1 + player]
      check.of[ticket][player] = user
      check[ticket .. ' ' .. user] = '0'
      fields[#fields + 1] = ticket .. ' ' .. user
      fields[#fields + 1] = '0'
    end
    players, at = players + users, at + 2 + users
    local score, life = call('ZSCORE', pending, ticket), call('PTTL', ready.tickets .. ticket)
    if obstacle == 0 and (life == -2 or call('SISMEMBER', all, ticket) == 0 or not is_claim(score, claim)) then
      obstacle, is_other = i, score and not is_claim(score, claim) and 1 or 0
    end
    -- The check ends early if a ticket expires.
    if life >= 0 then due = math.min(due, now + life + 1) end
  end
  reply[#reply + 1] = { obstacle, is_other }
  if obstacle == 0 then
    local life = time + 2000 * timeout
    check.players = tostring(players)
    check.claim = claim_in(math.floor((now + time) / 1000) + 1, next_number(counter, false, 2 * timeout))
    for _, ticket in ipairs(check.ids) do
      call('ZADD', pending, check.claim, ticket)
      call('SET', ready.pointers .. ticket, id, 'PX', life)
    end
    -- As Redis writes scores, because they are compared as text.
    check.claim = call('ZSCORE', pending, check.ids[1])
    changed('p', check.ids, check.claim)
    call('HSET', check.key, 'claim', check.claim, 'tickets', table.concat(check.ids, ' '), 'match', match, 'players', players,
      'opened', string.format('%.0f', now), 'deadline', check.deadline, 'accepted', 0, 'taken', 0)
    if players == 0 then
      due = now
      call('HSET', check.key, 'complete', string.format('%.0f', now))
    end
    in_chunks(fields, 2000, function(from, to) call('HSET', check.key, unpack(fields, from, to)) end)
    call('PEXPIRE', check.key, life)
    call('ZADD', ready.due, due, id)
    if call('PTTL', ready.due) < life then call('PEXPIRE', ready.due, life) end
    local states = {}
    for i, ticket in ipairs(check.ids) do states[i] = state_of(check, ticket) end
    publish_news(ready, check, states)
  end
end
return reply
