-- Refuses a step without the lock while another program holds it, or has left one of its keys behind: that program reads
-- and writes in several commands, which this step would disturb. A process of ours that holds the lock works in single
-- scripts, so it is not in the way. It holds the library's keys with the same token as fetchTicketsLock.
-- KEYS[1..4] as in preamble.lua; the last three keys are those of rueidislock. They are removed from KEYS.
-- ARGV[1] as in preamble.lua.
-- Defines: nothing; it returns an error reply.
-- Keeps: a step that hands out or assigns tickets never runs between two commands of a program that holds the lock.
local theirs = { table.remove(KEYS), table.remove(KEYS), table.remove(KEYS) }
if ARGV[1] == '' then
  local tokens = call('MGET', KEYS[4], unpack(theirs))
  for at = 2, #tokens do
    if tokens[at] and tokens[at] ~= tokens[1] then
      return redis.error_reply('LOCKHELD another program holds the lock')
    end
  end
end
