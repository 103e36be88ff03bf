-- Removes tickets from matchmaking; their data stays.
-- KEYS[1..4] as in preamble.lua; KEYS[5..] the tickets.
-- ARGV[1] as in preamble.lua; ARGV[2] '1' to remove only tickets whose data is gone (the repair), else '0'.
-- Reply: how many were removed.
local only_lost, out, gone = ARGV[2] == '1', 0, {}
for at = 5, #KEYS do
  if not only_lost or call('EXISTS', KEYS[at]) == 0 then
    local id = id_of(KEYS[at])
    out = out + call('SREM', all, id)
    call('ZREM', queue, id)
    call('ZREM', pending, id)
    gone[#gone + 1] = id
  end
end
changed('-', gone)
return out
