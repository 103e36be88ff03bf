-- Adds new tickets to matchmaking.
-- KEYS[1..4] as in preamble.lua.
-- ARGV: none of its own.
-- Defines: `enqueue`.
-- Keeps: set, queue and ticketChanges are written together.
-- `members` are ids whose data has been written; `scored` holds the same ids, each after its creation time. Wakes one
-- engine of the set `idle` through its channel: `wake` followed by its name. `life` is the longest lifetime of these
-- tickets in ms.
local function enqueue(members, scored, idle, wake, life)
  call('SADD', all, unpack(members))
  call('ZADD', queue, unpack(scored))
  changed('+', members)
  -- Engines of ours keep the queue equal to the set. Engines of another program know only the set, and leave the queue
  -- behind: forget more than is added, so that it stays in proportion to the set, and expires when nothing is added.
  if call('ZCARD', queue) > call('SCARD', all) then
    local sample, stale = call('ZRANDMEMBER', queue, 3 * #members + 16), {}
    local indexed = call('SMISMEMBER', all, unpack(sample))
    for i = 1, #sample do
      if indexed[i] == 0 then stale[#stale + 1] = sample[i] end
    end
    if #stale > 0 then call('ZREM', queue, unpack(stale)) end
  end
  if call('PTTL', queue) < tonumber(life) then call('PEXPIRE', queue, life) end
  -- A dead engine receives nothing; try the next one.
  for _ = 1, 4 do
    local engine = call('SPOP', idle)
    if not engine or call('PUBLISH', wake .. engine, '') > 0 then break end
  end
end
