-- Makes matches: all of each, or nothing of it.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; then the tickets of all matches; then as many assignments, in the same order;
-- then, for each match that can be abandoned, the key that says that it was.
-- ARGV[1] as in preamble.lua; ARGV[2] '1' to check that the tickets are there, else '0'; ARGV[3] lifetime of an assigned ticket in ms;
-- ARGV[4] number of tickets; ARGV[5..] for each match: its number of tickets, '1' if it can be abandoned or else '0', the match as
-- watchers and the recorder read it, how many assignments follow, and these: one for all tickets, or one for each.
-- Reply: the id of the entry in matchEvents, or nothing if no match was made; and for each match 0 when it was made, -1 when it was
-- abandoned, else the place (from 1) of the first ticket that is in the way.
-- Keeps: no ticket is ever assigned twice; assignment, removal from matchmaking and entry are one step. Nobody is notified:
-- notify.lua does that when the matches are recorded.
local check, lifetime, count = ARGV[2] == '1', ARGV[3], tonumber(ARGV[4])
local tickets, assignments, fence = 5, 5 + count, 5 + 2 * count
local matches, ids = {}, {}
for i = 1, count do ids[i] = id_of(KEYS[tickets + i]) end
local last, at = 0, 5
while at <= #ARGV do
  local match = { first = last + 1, last = last + tonumber(ARGV[at]), made = ARGV[at + 2], given = tonumber(ARGV[at + 3]), at = at }
  if ARGV[at + 1] == '1' then
    fence = fence + 1
    match.fence = KEYS[fence]
  end
  matches[#matches + 1] = match
  last, at = match.last, at + 4 + match.given
end

-- Tickets that left matchmaking. Usually all have their data, which one command can tell; if not, each is looked at.
local gone = {}
in_chunks(check and ids or {}, 1000, function(from, to)
  local indexed = call('SMISMEMBER', all, unpack(ids, from, to))
  local complete = call('EXISTS', unpack(KEYS, tickets + from, tickets + to)) == to - from + 1
  for i = from, to do
    if indexed[i - from + 1] == 0 or not complete and call('EXISTS', KEYS[tickets + i]) == 0 then gone[i] = true end
  end
end)

-- Writes the assignments of a match. One that is there already, also from a match before this one, undoes it.
local function write(match)
  if match.fence and call('EXISTS', match.fence) == 1 then return -1 end
  for i = match.first, match.last do
    if gone[i] then return i - match.first + 1 end
  end
  for i = match.first, match.last do
    local place = match.given == 1 and 1 or i - match.first + 1
    if not call('SET', KEYS[assignments + i], ARGV[match.at + 3 + place], 'NX', 'PX', lifetime) then
      for written = match.first, i - 1 do call('DEL', KEYS[assignments + written]) end
      return i - match.first + 1
    end
  end
  return 0
end

local reply, made, done = {}, {}, {}
for number, match in ipairs(matches) do
  reply[number] = write(match)
  if reply[number] == 0 then
    made[#made + 1] = match.made
    for i = match.first, match.last do
      call('PEXPIRE', KEYS[tickets + i], lifetime)
      done[#done + 1] = ids[i]
    end
  end
end
if #made == 0 then return { false, reply } end
in_chunks(done, 1000, function(from, to)
  call('SREM', all, unpack(done, from, to))
  call('ZREM', queue, unpack(done, from, to))
  call('ZREM', pending, unpack(done, from, to))
end)
return { call('XADD', KEYS[5], '*', 'made', table.concat(made)), reply }
