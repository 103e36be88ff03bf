-- Cancels a ticket.
-- KEYS[1..4] as in preamble.lua.
-- ARGV: none of its own.
-- Defines: `cancel`, which takes the keys of a ticket and its assignment, and the channel of cancelled tickets. Returns
-- 2 if the ticket is assigned (nothing changes), 1 if it was cancelled, 0 if it did not exist.
-- Keeps: of a cancellation and an assignment only one succeeds; only tickets are ever deleted.
local function cancel(ticket, assignment, gone)
  if call('EXISTS', assignment) == 1 then return 2 end
  -- A key holds a ticket if the set contains its id, or if its data starts with the id (field 1), as every encoded
  -- ticket does.
  local id, data = id_of(ticket), redis.pcall('GET', ticket)
  local head = string.char(10, #id) .. id
  local is_ticket = type(data) == 'string' and (string.sub(data, 1, #head) == head or call('SISMEMBER', all, id) == 1)
  call('SREM', all, id)
  call('ZREM', queue, id)
  call('ZREM', pending, id)
  changed('-', { id })
  if not is_ticket then return 0 end
  call('DEL', ticket)
  call('PUBLISH', gone, id)
  return 1
end
