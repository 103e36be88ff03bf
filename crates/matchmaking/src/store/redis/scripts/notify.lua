-- Pushes matches to their watchers.
-- ARGV[3] '1' to remove the entries, else '0'; ARGV[4..] the ids of entries in matchEvents.
-- Keeps: of an entry that is gone nobody is notified again; push and removal are one step.
local events = prefix .. 'matchEvents'
for at = 4, #ARGV do
  local entry = call('XRANGE', events, ARGV[at], ARGV[at])[1]
  if entry then
    call('PUBLISH', prefix .. 'assigned', entry[2][2])
    if ARGV[3] == '1' then call('XDEL', events, ARGV[at]) end
  end
end
return redis.status_reply('OK')
