-- Hands out the oldest tickets that nobody is processing, and marks them as pending.
-- ARGV[3] how many at most; ARGV[4] after how many seconds a pending ticket is active again; ARGV[5] the engine that asks.
-- Returns the size of the set, the size of the queue, and the ids, oldest first.
-- Keeps: no id is handed out twice within the pending timeout; an id that left the set is never handed out; an engine that
-- got all there was is woken by the next ticket, with no gap in between.
local limit, timeout = tonumber(ARGV[3]), tonumber(ARGV[4])
local now = redis.call('TIME')[1]
local live = tonumber(now) - timeout
local step = math.min(limit, 1000)
local taken, marks, stale, at = {}, {}, {}, 0
while #taken < limit do
  local ids = redis.call('ZRANGE', queue, at, at + step - 1)
  if #ids == 0 then break end
  local indexed = redis.call('SMISMEMBER', all, unpack(ids))
  local since = redis.call('ZMSCORE', pending, unpack(ids))
  for i, id in ipairs(ids) do
    if indexed[i] == 0 then
      stale[#stale + 1] = id
    elseif not since[i] or tonumber(since[i]) < live then
      if #taken == limit then break end
      taken[#taken + 1] = id
      marks[#marks + 1] = now
      marks[#marks + 1] = id
    end
  end
  at = at + #ids
end
in_chunks(stale, 1000, function(from, to) redis.call('ZREM', queue, unpack(stale, from, to)) end)
in_chunks(marks, 2000, function(from, to) redis.call('ZADD', pending, unpack(marks, from, to)) end)
if #taken < limit then redis.call('SADD', prefix .. 'idleEngines', ARGV[5]) end
return { redis.call('SCARD', all), redis.call('ZCARD', queue), taken }
