-- Creates tickets and wakes one idle engine.
-- KEYS[1..4] as in preamble.lua; KEYS[5] idleEngines; KEYS[6..] the tickets.
-- ARGV[1] as in preamble.lua; ARGV[2] the prefix of the engines' channels; ARGV[3..] for each ticket: lifetime in ms,
-- creation time in µs, data.
-- Reply: how many were created.
-- Keeps: data, set and queue are written together. Repeating the call, as after a lost reply, changes nothing: a ticket
-- that was assigned in between does not come back.
local members, scored, life = {}, {}, 0
for i = 6, #KEYS do
  local at = 3 * (i - 5)
  if call('SET', KEYS[i], ARGV[at + 2], 'NX', 'PX', ARGV[at]) then
    local id = id_of(KEYS[i])
    life = math.max(life, tonumber(ARGV[at]))
    members[#members + 1] = id
    scored[#scored + 1] = ARGV[at + 1]
    scored[#scored + 1] = id
  end
end
if #members > 0 then enqueue(members, scored, KEYS[5], ARGV[2], life) end
return #members
