-- Makes tickets and wakes one engine that has nothing to do.
-- ARGV[3..] for each ticket: id, lifetime in ms, creation time in µs, data.
-- Keeps: data, set and queue are written together. Making a ticket twice, as after a lost answer, changes nothing: one that
-- was assigned in between does not come back.
local members, scored = {}, {}
for at = 3, #ARGV, 4 do
  local id = ARGV[at]
  if call('SET', prefix .. id, ARGV[at + 3], 'NX', 'PX', ARGV[at + 1]) then
    members[#members + 1] = id
    scored[#scored + 1] = ARGV[at + 2]
    scored[#scored + 1] = id
  end
end
if #members > 0 then take_part(members, scored) end
return #members
