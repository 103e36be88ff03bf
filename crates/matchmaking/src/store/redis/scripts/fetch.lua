-- Marks the oldest active tickets as pending and returns them.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; KEYS[6] idleEngines; KEYS[7] claimNumber; then the keys
-- of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] the maximum number of tickets; ARGV[3] after how many seconds a pending ticket is
-- active again; ARGV[4] the engine; ARGV[5] how many bytes matchEvents may take before no tickets are handed out; ARGV[6] the
-- claim that the tickets join, or empty for a new one.
-- Reply: the size of the set, the size of the queue, 1 if matchEvents takes too many bytes or else 0, the claim on the
-- tickets or an empty text, the ids, oldest first, and who else holds tickets: 0 nobody, 1 minimatch, 2 Open Match.
-- Keeps: no id is returned twice within the pending timeout; an id that left the set is never returned; the next ticket
-- wakes an engine that got fewer than the maximum, with no gap in between.
local limit, timeout = tonumber(ARGV[2]), tonumber(ARGV[3])
-- A few entries are never too large, so skip MEMORY USAGE for them.
if call('XLEN', KEYS[5]) > 16 and call('MEMORY', 'USAGE', KEYS[5]) >= tonumber(ARGV[5]) then
  return { call('SCARD', all), call('ZCARD', queue), 1, ARGV[6], {}, 0 }
end
local now = call('TIME')[1]
local live = tonumber(now) - timeout
local step = math.min(limit, 1000)
local taken, marks, stale, at, claim, foreign = {}, {}, {}, 0, ARGV[6] ~= '' and ARGV[6], 0
while #taken < limit do
  local ids = call('ZRANGE', queue, at, at + step - 1)
  if #ids == 0 then break end
  at = at + #ids
  local since, free = call('ZMSCORE', pending, unpack(ids)), {}
  for i = 1, #ids do
    local second = since[i] and tonumber(since[i])
    if not second or second < live then
      free[#free + 1] = ids[i]
    else
      foreign = math.max(foreign, program_of(second))
    end
  end
  local indexed = #free > 0 and call('SMISMEMBER', all, unpack(free))
  for i = 1, #free do
    if indexed[i] == 0 then
      stale[#stale + 1] = free[i]
    elseif #taken < limit then
      if not claim then claim = claim_in(now, next_number(KEYS[7], false, 2 * timeout)) end
      taken[#taken + 1] = free[i]
      marks[#marks + 1] = claim
      marks[#marks + 1] = free[i]
    end
  end
end
in_chunks(stale, 1000, function(from, to) call('ZREM', queue, unpack(stale, from, to)) end)
in_chunks(marks, 2000, function(from, to) call('ZADD', pending, unpack(marks, from, to)) end)
changed('p', taken, claim)
if #taken < limit then
  call('SADD', KEYS[6], ARGV[4])
  -- An engine that is killed leaves its name. The key ends with the last engine.
  call('EXPIRE', KEYS[6], 600)
end
return { call('SCARD', all), call('ZCARD', queue), 0, claim or '', taken, foreign }
