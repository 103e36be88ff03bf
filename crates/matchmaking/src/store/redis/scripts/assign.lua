-- Assigns matches, each as a whole or not at all, and creates their backfills.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; KEYS[6] backfillAcks; then the tickets of all matches; then as many
-- assignments, in the same order; then, for each match that can be abandoned, the key that marks it as abandoned; then, for
-- each match that has one, its backfill; then the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] '1' to check that the tickets exist, else '0'; ARGV[3] lifetime of an assigned
-- ticket in ms; ARGV[4] number of tickets; ARGV[5] number of matches that can be abandoned; ARGV[6] lifetime of a backfill's
-- keys in ms; ARGV[7..] for each match: its number of tickets, '1' if it can be abandoned or else '0', the claim that holds its
-- tickets or an empty text, the encoded match for watchers and the recorder, the number of assignments that follow, and the
-- assignments: one for all tickets, or one for each; then '0', or '1' and its backfill: fixed, what made the match, its
-- teams, and the seat of each ticket.
-- Reply: the id of the entry in matchEvents, or nil if no match was assigned; and for each match two numbers: 0 if it was
-- assigned, -1 if it was abandoned, else the position (from 1) of the first ticket that prevents it; and 1 if that ticket
-- is held by another claim, else 0.
-- Keeps: no ticket is ever assigned twice; a match under an old claim changes nothing; assignment, removal from
-- matchmaking, the matchEvents entry and the backfill are one step.
-- Notifies no player: notify.lua does that once the matches are recorded.
local check, lifetime, count = ARGV[2] == '1', ARGV[3], tonumber(ARGV[4])
local tickets, assignments, fence = 6, 6 + count, 6 + 2 * count
local backfill = fence + tonumber(ARGV[5])
local matches, ids = {}, {}
for i = 1, count do ids[i] = id_of(KEYS[tickets + i]) end
local last, at = 0, 7
while at <= #ARGV do
  local match = {
    first = last + 1, last = last + tonumber(ARGV[at]), made = ARGV[at + 3], given = tonumber(ARGV[at + 4]), at = at + 4,
    claim = ARGV[at + 2] ~= '' and tonumber(ARGV[at + 2]),
  }
  if ARGV[at + 1] == '1' then
    fence = fence + 1
    match.fence = KEYS[fence]
  end
  matches[#matches + 1] = match
  last, at = match.last, match.at + 1 + match.given
  if ARGV[at] == '1' then
    backfill = backfill + 1
    match.backfill, match.room = KEYS[backfill], at
    at = at + 4 + match.last - match.first
  end
  at = at + 1
end

-- Finds the tickets that left matchmaking. Usually all data exists, which one EXISTS shows; otherwise checks each
-- ticket.
local gone = {}
in_chunks(check and ids or {}, 1000, function(from, to)
  local indexed = call('SMISMEMBER', all, unpack(ids, from, to))
  local complete = call('EXISTS', unpack(KEYS, tickets + from, tickets + to)) == to - from + 1
  for i = from, to do
    if indexed[i - from + 1] == 0 or not complete and call('EXISTS', KEYS[tickets + i]) == 0 then gone[i] = true end
  end
end)

-- Finds the tickets that the claim of their match does not hold: released, or claimed anew.
local claims, lost, others = {}, {}, {}
for _, match in ipairs(matches) do
  for i = match.first, match.claim and match.last or 0 do claims[i] = match.claim end
end
in_chunks(next(claims) and ids or {}, 1000, function(from, to)
  local scores = call('ZMSCORE', pending, unpack(ids, from, to))
  for i = from, to do
    local score = scores[i - from + 1]
    if claims[i] and not is_claim(score, claims[i]) and (score or check) then lost[i], others[i] = true, score end
  end
end)

-- Writes the assignments of a match. Undoes them if a ticket is already assigned, also by an earlier match of this
-- call.
local function write(match)
  if match.fence and call('EXISTS', match.fence) == 1 then return -1 end
  for i = match.first, match.last do
    if gone[i] or lost[i] then return i - match.first + 1 end
  end
  for i = match.first, match.last do
    local place = match.given == 1 and 1 or i - match.first + 1
    if not call('SET', KEYS[assignments + i], ARGV[match.at + place], 'NX', 'PX', lifetime) then
      for written = match.first, i - 1 do call('DEL', KEYS[assignments + written]) end
      return i - match.first + 1
    end
  end
  return 0
end

local reply, made, done = {}, {}, {}
for number, match in ipairs(matches) do
  local obstacle = write(match)
  local at = match.first + obstacle - 1
  reply[number] = { obstacle, obstacle > 0 and not gone[at] and others[at] and 1 or 0 }
  if obstacle == 0 then
    made[#made + 1] = match.made
    for i = match.first, match.last do
      call('PEXPIRE', KEYS[tickets + i], lifetime)
      done[#done + 1] = ids[i]
    end
    if match.backfill then
      write_backfill(KEYS[6], match.backfill, ARGV[6], ARGV[match.room + 1], '', '')
      call('HSET', match.backfill, 'match', ARGV[match.room + 2], 'teams', ARGV[match.room + 3])
      for i = match.first, match.last do
        call('HSET', match.backfill, 's:' .. ids[i], ARGV[match.room + 4 + i - match.first])
      end
    end
  end
end
if #made == 0 then return { false, reply } end
in_chunks(done, 1000, function(from, to)
  call('SREM', all, unpack(done, from, to))
  call('ZREM', queue, unpack(done, from, to))
  call('ZREM', pending, unpack(done, from, to))
end)
changed('-', done)
return { call('XADD', KEYS[5], '*', 'made', table.concat(made)), reply }
