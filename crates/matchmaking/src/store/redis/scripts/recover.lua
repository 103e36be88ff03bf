-- Claims entries of matchEvents that have not been recorded for a while.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; KEYS[6] matchEventsLease.
-- ARGV[1] as in preamble.lua; ARGV[2] the consumer; ARGV[3] the maximum number of entries; ARGV[4] their minimum age in
-- ms; ARGV[5] the lease in ms; ARGV[6] the entry to start after, or empty; ARGV[7] the last entry to return, or empty.
-- Reply: the id and the matches of each entry, the oldest first.
-- Keeps: while one consumer holds the lease, others get nothing. Two at once would do no harm. Removes the consumer
-- group of an earlier version once there is nothing to return.
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
    -- Earlier versions read through a consumer group, which never forgets its consumers. Their entries have all been
    -- recorded by now, and nothing reads through the group.
    if call('EXISTS', events) == 1 then call('XGROUP', 'DESTROY', events, 'relay') end
  end
  return {}
end
call('SET', lease, ARGV[2], 'PX', ARGV[5])
local reply = {}
for i, entry in ipairs(entries) do reply[i] = { entry[1], entry[2][2] } end
return reply
