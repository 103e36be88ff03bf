-- Reads what happened to tickets since a position in ticketChanges, and keeps the stream alive.
-- KEYS[1..4] as in preamble.lua; KEYS[5] backfillAcks.
-- ARGV[1] as in preamble.lua; ARGV[2] the position, the id of the last entry that was read, or empty; ARGV[3] how many
-- entries to read; ARGV[4] the lifetime of the stream in ms; ARGV[5] how old an entry may get in ms.
-- Reply: the time in seconds and microseconds; the sizes of allTickets, of proposed_ticket_ids and of backfillAcks; '1' if
-- nothing since the position was missed, else '0'; the new position; and the entries, each as its kind and its ids.
-- Keeps: the entries and the sizes belong to the same moment. The entry at the position is read again: as long as it
-- exists, nothing after it was removed. If it is gone, a new entry becomes the position, and the reader starts over.
local time = call('TIME')
local position, found, reply = ARGV[2], '1', {}
local entries = position ~= '' and call('XRANGE', changes, position, '+', 'COUNT', ARGV[3] + 1) or {}
if not entries[1] or entries[1][1] ~= position then
  found, position = '0', call('XADD', changes, '*', 'b', '')
else
  for i = 2, #entries do
    local fields = entries[i][2]
    reply[#reply + 1] = { fields[1], fields[2] }
  end
  position = entries[#entries][1]
end
call('PEXPIRE', changes, ARGV[4])
-- The last entry stays, however old it is: it is the position of every reader that is up to date.
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[5]
if oldest < tonumber(string.match(position, '^%d+')) then
  call('XTRIM', changes, 'MINID', '~', string.format('%.0f', oldest))
else
  call('XTRIM', changes, 'MINID', '~', position)
end
return {
  time[1], time[2], call('SCARD', all), call('ZCARD', pending), call('ZCARD', KEYS[5]), found, position, reply,
}
