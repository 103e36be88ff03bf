-- Taking a ticket back, for the scripts that do.
-- Returns 2 when it has been assigned (nothing is changed), 1 when it was there, 0 when it was not.
-- Keeps: cancelling and assigning have one winner; nothing but a ticket is ever deleted.
local function cancel(id)
  if call('EXISTS', prefix .. 'assign:' .. id) == 1 then return 2 end
  -- A ticket that is in the set, or data that begins as every encoded ticket does: with its id, which is field 1.
  local data = redis.pcall('GET', prefix .. id)
  local head = string.char(10, #id) .. id
  local is_ticket = type(data) == 'string' and (string.sub(data, 1, #head) == head or call('SISMEMBER', all, id) == 1)
  call('SREM', all, id)
  call('ZREM', queue, id)
  call('ZREM', pending, id)
  if not is_ticket then return 0 end
  call('DEL', prefix .. id)
  call('PUBLISH', prefix .. 'gone', id)
  return 1
end
