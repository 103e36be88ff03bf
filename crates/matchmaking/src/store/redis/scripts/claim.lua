-- Marks the tickets of matches as pending, each match as a whole or not at all.
-- KEYS[1..4] as in preamble.lua; KEYS[5] claimNumber; KEYS[6] stem of holders: the numbers come from KEYS[5] and the
-- arguments; KEYS[7..] the tickets of all matches.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many seconds a pending ticket is active again; ARGV[3] number of matches;
-- then for each match: the holder's number or 0 for a new one, a description of the holder, the number of tickets.
-- Reply: for each match, the claim and 0; or an empty text and the position (from 1) of the first ticket that prevents it.
-- Keeps: no ticket is in two live claims; a ticket that left matchmaking is in none.
local timeout, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local second = call('TIME')[1]
local live = tonumber(second) - timeout
local first, ids = 6, {}
for i = first + 1, #KEYS do ids[#ids + 1] = id_of(KEYS[i]) end

-- Finds the tickets that no match can have: gone, or pending.
local taken = {}
in_chunks(ids, 1000, function(from, to)
  local indexed = call('SMISMEMBER', all, unpack(ids, from, to))
  local since = call('ZMSCORE', pending, unpack(ids, from, to))
  local complete = call('EXISTS', unpack(KEYS, first + from, first + to)) == to - from + 1
  for i = from, to do
    local at = i - from + 1
    if indexed[at] == 0 or since[at] and tonumber(since[at]) >= live
      or not complete and call('EXISTS', KEYS[first + i]) == 0 then
      taken[ids[i]] = true
    end
  end
end)

local reply, at = {}, 1
for match = 1, count do
  local number, size = tonumber(ARGV[3 * match + 1]), tonumber(ARGV[3 * match + 3])
  local last, obstacle = at + size - 1, 0
  for i = at, last do
    if taken[ids[i]] then
      obstacle = i - at + 1
      break
    end
  end
  if obstacle > 0 then
    reply[match] = { '', obstacle }
  else
    if number == 0 then number = next_number(KEYS[5], true, 2 * timeout) end
    local claim, marks = claim_in(second, number), {}
    for i = at, last do
      taken[ids[i]] = true
      marks[#marks + 1] = claim
      marks[#marks + 1] = ids[i]
    end
    in_chunks(marks, 2000, function(from, to) call('ZADD', pending, unpack(marks, from, to)) end)
    if size > 0 then call('SET', KEYS[6] .. string.format('%020d', number), ARGV[3 * match + 2], 'EX', 2 * timeout) end
    reply[match] = { claim, 0 }
  end
  at = last + 1
end
return reply
