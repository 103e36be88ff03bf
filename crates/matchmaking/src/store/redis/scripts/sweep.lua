-- Cancels the tickets of players who have been absent for too long, and ends their ready checks.
-- KEYS[1..4] as in preamble.lua; KEYS[5] presence; KEYS[6] readyChecks; KEYS[7] readyRevision; KEYS[8] stem of checks,
-- KEYS[9] stem of pointers, KEYS[10] stem of tickets and KEYS[11] stem of assignments: the ids come from the checks;
-- KEYS[12..] for each ticket: the ticket, its assignment.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of news of ready checks; ARGV[3] the channel of cancelled tickets; ARGV[4] how
-- long the end of a ready check is remembered in ms; ARGV[5..] for each ticket its entry in presence.
-- Reply: how many were cancelled, and how many ready checks have ended.
-- Keeps: a player who returned in time keeps the ticket; an assigned ticket stays assigned.
local presence, time, cancelled, ended, ready = KEYS[5], now(), 0, 0, ready_keys(6, 2)
for at = 12, #KEYS, 2 do
  local entry = ARGV[at / 2 - 1]
  local due = call('ZSCORE', presence, entry)
  if due and tonumber(due) <= time then
    call('ZREM', presence, entry)
    if cancel(KEYS[at], KEYS[at + 1], ARGV[3]) == 1 then
      cancelled = cancelled + 1
      ended = ended + leave_check(ready, id_of(KEYS[at]))
    end
  end
end
return { cancelled, ended }
