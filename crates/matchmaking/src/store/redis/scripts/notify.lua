-- Publishes matches to their watchers.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of assignments; ARGV[3] '1' to remove the entries, else '0';
-- ARGV[4..] the ids of entries in matchEvents.
-- Reply: OK.
-- Keeps: the watchers of a removed entry are not notified again; publish and removal are one step.
for at = 4, #ARGV do
  local entry = call('XRANGE', KEYS[5], ARGV[at], ARGV[at])[1]
  if entry then
    call('PUBLISH', ARGV[2], entry[2][2])
    if ARGV[3] == '1' then call('XDEL', KEYS[5], ARGV[at]) end
  end
end
return redis.status_reply('OK')
