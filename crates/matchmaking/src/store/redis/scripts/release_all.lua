-- Makes all pending tickets active again.
-- KEYS[1..4] as in preamble.lua.
-- ARGV[1] as in preamble.lua.
-- Reply: how many there were.
local count = call('ZCARD', pending)
call('DEL', pending)
changed('a', { '*' })
return count
