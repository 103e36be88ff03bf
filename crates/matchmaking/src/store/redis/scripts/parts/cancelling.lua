-- Cancels a ticket, for the scripts that do.
-- KEYS[1..4] as in preamble.lua.
-- ARGV: none of its own.
-- Defines: `cancel`, which takes the keys of a ticket and its assignment and the channel of tickets that are gone. It returns 2
-- when the ticket has been assigned (nothing is changed), 1 when it was there, 0 when it was not.
-- Keeps: cancelling and assigning have one winner; nothing but a ticket is ever deleted.
local function cancel(ticket, assignment, gone)
  if call('EXISTS', assignment) == 1 then return 2 end
  -- A ticket that is in the set, or data that begins as every encoded ticket does: with its id, which is field 1.
  local id, data = id_of(ticket), redis.pcall('GET', ticket)
  local head = string.char(10, #id) .. id
  local is_ticket = type(data) == 'string' and (string.sub(data, 1, #head) == head or call('SISMEMBER', all, id) == 1)
  call('SREM', all, id)
  call('ZREM', queue, id)
  call('ZREM', pending, id)
  if not is_ticket then return 0 end
  call('DEL', ticket)
  call('PUBLISH', gone, id)
  return 1
end
