-- Ends ready checks whose matches were assigned, or whose tickets are to be released. Ignores those that another claim holds.
-- KEYS[1..4] as in preamble.lua; KEYS[5] readyChecks; KEYS[6] readyRevision; KEYS[7] stem of checks, KEYS[8] stem of pointers,
-- KEYS[9] stem of tickets and KEYS[10] stem of assignments: the ids come from the checks.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of news; ARGV[3] the channel of cancelled tickets; ARGV[4] how long the end of
-- a check is remembered in ms; ARGV[5] the claim under which they were taken; ARGV[6..] the checks.
-- Reply: how many were ended.
-- Keeps: an engine whose lease has ended does not end the check that another one has taken.
local ready, claim, closed = ready_keys(5, 2), tonumber(ARGV[5]), 0
for at = 6, #ARGV do
  local check = load_check(ready, ARGV[at])
  if check and tonumber(check.claim) == claim then
    end_check(ready, check, 'settled')
    closed = closed + 1
  end
end
return closed
