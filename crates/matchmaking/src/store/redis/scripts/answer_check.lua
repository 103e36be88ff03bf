-- Records a player's answer to a ready check. A decline ends the check.
-- KEYS[1..4] as in preamble.lua; KEYS[5] readyChecks; KEYS[6] readyRevision; KEYS[7] stem of checks, KEYS[8] stem of pointers,
-- KEYS[9] stem of tickets and KEYS[10] stem of assignments: the ids come from the check.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of news; ARGV[3] the channel of cancelled tickets; ARGV[4] how long the end of
-- a check is remembered in ms; ARGV[5] the ticket; ARGV[6] the player; ARGV[7] '1' to accept, '0' to decline.
-- Reply: 'none' if there is no check to answer; 'open', the counts and the ticket's state after an acceptance; 'accepted' if the
-- match has already been assigned and the player had accepted it; 'left' after a decline; and at last the reason for which a check
-- has ended, or an empty text.
-- Keeps: an answer counts once, and only before the deadline by the clock of Redis; repeating it changes nothing.
local ready, ticket, user, accepts = ready_keys(5, 2), ARGV[5], ARGV[6], ARGV[7] == '1'
local pointer = call('GET', ready.pointers .. ticket)
if not pointer then return { 'none', '', '', '' } end
if string.sub(pointer, 1, 1) == '!' then
  local reason, users = string.match(pointer, '^!(%S+)(.*)$')
  local is_theirs = users and string.find(users .. ' ', ' ' .. user .. ' ', 1, true)
  if is_theirs and not accepts and reason == 'declined' then return { 'left', '', '', '' } end
  if is_theirs and accepts and reason == 'accepted' then return { 'accepted', '', '', '' } end
  return { 'none', '', '', '' }
end
local check = load_check(ready, pointer)
if not check then return { 'none', '', '', '' } end
if not is_whole(ready, check) then
  end_check(ready, check, 'lost')
  return { 'none', '', '', 'lost' }
end
local field, now = ticket .. ' ' .. user, ms()
local is_complete = check.accepted == check.players
if not check[field] then return { 'none', '', '', '' } end
if not is_complete and now >= tonumber(check.deadline) then
  end_check(ready, check, 'no-answer')
  return { 'none', '', '', 'no-answer' }
end
if not accepts then
  -- Too late once everybody has accepted: the match is being made.
  if is_complete then return { 'none', '', '', '' } end
  end_check(ready, check, 'declined', ticket)
  return { 'left', '', '', 'declined' }
end
if check[field] == '0' then
  check[field] = '1'
  check.accepted = tostring(call('HINCRBY', check.key, 'accepted', 1))
  call('HSET', check.key, field, '1')
  if check.accepted == check.players then
    call('HSET', check.key, 'complete', string.format('%.0f', now))
    call('ZADD', ready.due, now, check.id)
  end
  local states = {}
  for i, each in ipairs(check.ids) do states[i] = state_of(check, each) end
  publish_news(ready, check, states)
end
return { 'open', counts_of(check), state_of(check, ticket), '' }
