-- Takes a ticket back.
-- ARGV[3] id.
-- Returns 2 when it has been assigned (nothing is changed), 1 when it was there, 0 when it was not.
-- Keeps: cancelling and assigning have one winner.
local id = ARGV[3]
if call('EXISTS', prefix .. 'assign:' .. id) == 1 then return 2 end
local existed = call('DEL', prefix .. id)
call('SREM', all, id)
call('ZREM', queue, id)
call('ZREM', pending, id)
if existed == 1 then call('PUBLISH', prefix .. 'gone', id) end
return existed
