-- Reads the ready checks of tickets.
-- KEYS[1..4] as in preamble.lua; KEYS[5] readyChecks; KEYS[6] readyRevision; KEYS[7] stem of checks, KEYS[8] stem of pointers,
-- KEYS[9] stem of tickets and KEYS[10] stem of assignments: the ids are arguments.
-- ARGV[1] as in preamble.lua; ARGV[2..4] as in answer_check.lua; ARGV[5..] the tickets.
-- Reply: the revision of the last news; and for each ticket an empty text without a check, '!' and the reason for which it ended,
-- or the counts of the check, a space and the state of the ticket. Nothing more if there was no check lately.
local ready, reply = ready_keys(5, 2), {}
local revision = call('GET', ready.revision)
if not revision then return { '0', {} } end
for at = 5, #ARGV do
  local id, state = call('GET', ready.pointers .. ARGV[at]), ''
  if id and string.sub(id, 1, 1) == '!' then
    state = id
  elseif id then
    local check = load_check(ready, id)
    if check and is_held(check, ARGV[at]) then state = counts_of(check) .. ' ' .. state_of(check, ARGV[at]) end
  end
  reply[#reply + 1] = state
end
return { revision, reply }
