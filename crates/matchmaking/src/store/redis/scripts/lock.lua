-- Takes the lock under its documented name, and under the names that rueidislock, minimatch's lock library, uses: three
-- keys, of which the majority, two, makes a holder. The library often leaves one of them behind.
-- KEYS[1] fetchTicketsLock; KEYS[2..4] the library's keys.
-- ARGV[1] token; ARGV[2] lifetime in ms.
-- Reply: 1 if we hold the lock, 0 if a process of ours holds it, -1 if another program does.
-- Keeps: of all holders, ours and the library's, only one has the majority. A key that is left behind is not touched.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local free = {}
for at = 2, #KEYS do
  if redis.call('EXISTS', KEYS[at]) == 0 then free[#free + 1] = KEYS[at] end
end
if #free < 2 then return -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for _, key in ipairs(free) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
return 1
