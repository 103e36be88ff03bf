-- Hands out entries of matchEvents that nobody has recorded for a while.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; KEYS[6] matchEventsLease.
-- ARGV[1] as in preamble.lua; ARGV[2] the consumer that asks; ARGV[3] how many entries at most; ARGV[4] how old they are at least, in
-- ms; ARGV[5] for how many ms no other consumer gets any; ARGV[6] the entry to begin behind, or nothing; ARGV[7] the last entry to
-- hand out, or nothing.
-- Reply: for each entry its id and its matches, the oldest first.
-- Keeps: while one consumer is at work the others leave the entries to it. Two at once would do no harm. A consumer group that an
-- earlier version left goes when there is nothing to hand out.
local events, lease = KEYS[5], KEYS[6]
local holder = call('GET', lease)
if holder and holder ~= ARGV[2] then return {} end
local time = call('TIME')
local last = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - tonumber(ARGV[4])
local from, to = '-', string.format('%.0f', math.max(last, 0))
if ARGV[6] ~= '' then from = '(' .. ARGV[6] end
if ARGV[7] ~= '' and tonumber(string.match(ARGV[7], '^%d+')) <= last then to = ARGV[7] end
local entries = call('XRANGE', events, from, to, 'COUNT', ARGV[3])
if #entries == 0 then
  if ARGV[6] == '' then
    if holder then call('DEL', lease) end
    -- Relays of earlier versions read through a consumer group, which remembers each of them for ever. Nothing that they left is old
    -- enough to be recorded any more, and nobody reads through the group.
    if call('EXISTS', events) == 1 then call('XGROUP', 'DESTROY', events, 'relay') end
  end
  return {}
end
call('SET', lease, ARGV[2], 'PX', ARGV[5])
local reply = {}
for i, entry in ipairs(entries) do reply[i] = { entry[1], entry[2][2] } end
return reply
