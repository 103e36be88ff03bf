-- Takes tickets out of matchmaking; their data stays.
-- ARGV[3] '1' to do so only where the data is gone (the repair), else '0'; ARGV[4..] ids.
-- Returns how many were taken out.
local only_lost, out = ARGV[3] == '1', 0
for at = 4, #ARGV do
  local id = ARGV[at]
  if not only_lost or call('EXISTS', prefix .. id) == 0 then
    out = out + call('SREM', all, id)
    call('ZREM', queue, id)
    call('ZREM', pending, id)
  end
end
return out
