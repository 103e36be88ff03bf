-- Cancels tickets whose players have been gone for too long.
-- ARGV[3..] ids.
-- Returns how many were cancelled.
-- Keeps: a player who came back in time keeps the ticket; one that was assigned stays so.
local time, cancelled = now(), 0
for at = 3, #ARGV do
  local id = ARGV[at]
  local due = call('ZSCORE', presence, id)
  if due and tonumber(due) <= time then
    call('ZREM', presence, id)
    if cancel(id) == 1 then cancelled = cancelled + 1 end
  end
end
return cancelled
