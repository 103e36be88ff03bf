-- Cancels the tickets of players who have been absent for too long.
-- KEYS[1..4] as in preamble.lua; KEYS[5] presence; KEYS[6..] for each ticket: the ticket, its assignment.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of cancelled tickets.
-- Reply: how many were cancelled.
-- Keeps: a player who returned in time keeps the ticket; an assigned ticket stays assigned.
local presence, time, cancelled = KEYS[5], now(), 0
for at = 6, #KEYS, 2 do
  local id = id_of(KEYS[at])
  local due = call('ZSCORE', presence, id)
  if due and tonumber(due) <= time then
    call('ZREM', presence, id)
    if cancel(KEYS[at], KEYS[at + 1], ARGV[2]) == 1 then cancelled = cancelled + 1 end
  end
end
return cancelled
