-- Makes matches: all of each, or nothing of it.
-- ARGV[3] '1' to check that the tickets are there, else '0'; ARGV[4] lifetime of an assigned ticket in ms.
-- ARGV[5..] for each match: number of tickets, the key that says that it was abandoned or nothing, the assignment, the match as
-- watchers and the recorder read it, ids.
-- Returns the id of the entry in matchEvents, or nothing if no match was made; and for each match 0 when it was made, -1 when it was
-- abandoned, else the place (from 1) of the first ticket that is in the way.
-- Keeps: no ticket is ever assigned twice; assignment, removal from matchmaking and entry are one step. Nobody is notified:
-- that is notify.lua's, when the matches are recorded.
local check, lifetime = ARGV[3] == '1', ARGV[4]
local matches, ids, data, assign = {}, {}, {}, {}
local at = 5
while at <= #ARGV do
  local last = at + 3 + tonumber(ARGV[at])
  matches[#matches + 1] = { first = #ids + 1, last = #ids + last - at - 3, at = at }
  for i = at + 4, last do
    local id, number = ARGV[i], #ids + 1
    ids[number], data[number], assign[number] = id, prefix .. id, prefix .. 'assign:' .. id
  end
  at = last + 1
end

-- Tickets that left matchmaking. Usually all have their data, which one command can tell; if not, each is looked at.
local gone = {}
in_chunks(check and ids or {}, 1000, function(from, to)
  local indexed = call('SMISMEMBER', all, unpack(ids, from, to))
  local complete = call('EXISTS', unpack(data, from, to)) == to - from + 1
  for i = from, to do
    if indexed[i - from + 1] == 0 or not complete and call('EXISTS', data[i]) == 0 then gone[i] = true end
  end
end)

-- Writes the assignments of a match. One that is there already, also from a match before this one, undoes it.
local function write(match)
  local fence = ARGV[match.at + 1]
  if fence ~= '' and call('EXISTS', fence) == 1 then return -1 end
  for i = match.first, match.last do
    if gone[i] then return i - match.first + 1 end
  end
  for i = match.first, match.last do
    if not call('SET', assign[i], ARGV[match.at + 2], 'NX', 'PX', lifetime) then
      for written = match.first, i - 1 do call('DEL', assign[written]) end
      return i - match.first + 1
    end
  end
  return 0
end

local reply, made, done = {}, {}, {}
for number, match in ipairs(matches) do
  reply[number] = write(match)
  if reply[number] == 0 then
    made[#made + 1] = ARGV[match.at + 3]
    for i = match.first, match.last do
      call('PEXPIRE', data[i], lifetime)
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
return { call('XADD', prefix .. 'matchEvents', '*', 'made', table.concat(made)), reply }
