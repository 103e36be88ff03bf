-- Makes matches: all of each, or nothing of it.
-- ARGV[3] '1' to check that the tickets are there, else '0'; ARGV[4] lifetime of an assigned ticket in ms.
-- ARGV[5..] for each match: number of tickets, the assignment, the match as watchers and the relay read it, ids.
-- Returns for each match 0 when it was made, else the place (from 1) of the first ticket that is in the way.
-- Keeps: no ticket is ever assigned twice; assignment, removal from matchmaking, event and push are one step.
local check, lifetime = ARGV[3] == '1', ARGV[4]
local matches, ids = {}, {}
local at = 5
while at <= #ARGV do
  local size = tonumber(ARGV[at])
  matches[#matches + 1] = { first = #ids + 1, last = #ids + size, at = at }
  for i = at + 3, at + 2 + size do ids[#ids + 1] = ARGV[i] end
  at = at + 3 + size
end

-- Usually all tickets are as they should be, which few commands can tell. If not, each is looked at.
local in_the_way = {}
in_chunks(ids, 1000, function(from, to)
  local data, assigned = {}, {}
  for i = from, to do
    data[#data + 1] = prefix .. ids[i]
    assigned[#assigned + 1] = prefix .. 'assign:' .. ids[i]
  end
  if redis.call('EXISTS', unpack(assigned)) > 0 then
    for i = from, to do
      in_the_way[i] = redis.call('EXISTS', prefix .. 'assign:' .. ids[i]) == 1
    end
  end
  if check then
    local indexed = redis.call('SMISMEMBER', all, unpack(ids, from, to))
    local complete = redis.call('EXISTS', unpack(data)) == #data
    for i = from, to do
      if indexed[i - from + 1] == 0 or not complete and redis.call('EXISTS', prefix .. ids[i]) == 0 then
        in_the_way[i] = true
      end
    end
  end
end)

local reply, made, done, taken = {}, {}, {}, {}
for number, match in ipairs(matches) do
  local obstacle = 0
  for i = match.first, match.last do
    -- Also a ticket that a match before this one has just taken.
    if in_the_way[i] or taken[ids[i]] then
      obstacle = i - match.first + 1
      break
    end
  end
  reply[number] = obstacle
  if obstacle == 0 then
    for i = match.first, match.last do
      redis.call('SET', prefix .. 'assign:' .. ids[i], ARGV[match.at + 1], 'PX', lifetime)
      redis.call('PEXPIRE', prefix .. ids[i], lifetime)
      taken[ids[i]] = true
      done[#done + 1] = ids[i]
    end
    made[#made + 1] = ARGV[match.at + 2]
  end
end
if #made == 0 then return reply end
in_chunks(done, 1000, function(from, to)
  redis.call('SREM', all, unpack(done, from, to))
  redis.call('ZREM', queue, unpack(done, from, to))
  redis.call('ZREM', pending, unpack(done, from, to))
end)
local text = table.concat(made)
redis.call('XADD', prefix .. 'matchEvents', '*', 'made', text)
redis.call('PUBLISH', prefix .. 'assigned', text)
return reply
