-- Assigns tickets of a backfill to its game server, all of them or none.
-- KEYS[1..4] as in preamble.lua; KEYS[5] the backfill; KEYS[6] matchEvents; then the tickets; then as many assignments;
-- then the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] lifetime of an assigned ticket in ms; ARGV[3] the encoded match for watchers and the
-- recorder; ARGV[4..] the assignments: one for all tickets, or one for each.
-- Reply: the id of the entry in matchEvents, or nil if nothing was assigned; and the positions (from 1) of the tickets
-- that prevent it. The backfill forgets those.
-- Keeps: no ticket is ever assigned twice; assignment, removal from matchmaking, the matchEvents entry and the backfill's
-- list are one step. Notifies no player: notify.lua does that once the match is recorded.
local key, count = KEYS[5], (#KEYS - 6) / 2
local ids, left = {}, {}
for i = 1, count do
  local ticket, assignment = KEYS[6 + i], KEYS[6 + count + i]
  ids[i] = id_of(ticket)
  local claim = call('HGET', key, 'w:' .. ids[i])
  local is_ours = claim and call('ZSCORE', pending, ids[i]) == claim and call('SISMEMBER', all, ids[i]) == 1
  if not is_ours or call('EXISTS', ticket) == 0 or call('EXISTS', assignment) == 1 then
    left[#left + 1] = i
    leave_backfill(key, ids[i])
  end
end
if #left > 0 then return { false, left } end
for i, id in ipairs(ids) do
  call('SET', KEYS[6 + count + i], ARGV[#ARGV == 4 and 4 or 3 + i], 'PX', ARGV[2])
  call('PEXPIRE', KEYS[6 + i], ARGV[2])
  call('SREM', all, id)
  call('ZREM', queue, id)
  call('ZREM', pending, id)
  call('HDEL', key, 'w:' .. id)
  call('HSET', key, 'a:' .. id, '')
end
changed('-', ids)
return { call('XADD', KEYS[6], '*', 'made', ARGV[3]), left }
