-- Assigns the tickets of groups for a Director, each group as a whole or not at all.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; KEYS[6] stem of holders: the numbers come from the claims; then the
-- tickets of all groups; then as many assignments, in the same order; then the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many seconds a pending ticket is active again; ARGV[3] lifetime of an
-- assigned ticket in ms; ARGV[4] number of tickets; ARGV[5..] for each group: its number of tickets, the assignment, the
-- encoded match for watchers and the recorder.
-- Reply: the id of the entry in matchEvents, or nil if no group was assigned; and for each group a letter per ticket: 'f'
-- for a free ticket, 's' for one that has this same assignment, 'o' for one that has another, 'n' for one that does not
-- exist, 'h' for one that belongs to another match: another call of FetchMatches, or an engine, has claimed it beside a
-- ticket of a Director, or its match is claimed with tickets that this call of AssignTickets does not name, while the group
-- has tickets that are not in this match. A group was assigned if all its letters are 'f'.
-- Keeps: no ticket is ever assigned twice; assignment, removal from matchmaking and the matchEvents entry are one step.
-- Notifies no player: notify.lua does that once the matches are recorded.
local timeout, lifetime, count = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local tickets, assignments = 6, 6 + count
local live = tonumber(call('TIME')[1]) - timeout

local function holder_key(number) return KEYS[6] .. string.format('%020d', number) end

-- Returns the live claim on a ticket, and the number of its holder: for a Director that of the first claim of its call,
-- which is odd.
local callers = {}
local function claim_of(id)
  local claim = call('ZSCORE', pending, id)
  if not claim or tonumber(claim) < live then return end
  local number = tonumber(claim) % 1 * 2097152
  if number % 2 == 0 then return claim, number end
  if not callers[number] then
    local caller = string.match(call('GET', holder_key(number)) or '', '^%d+')
    callers[number] = { tonumber(caller) or number, holder_key(number) }
  end
  return claim, callers[number][1], callers[number][2]
end

-- How many tickets of each match of a Director this call names, by claim, and the key of its holder.
local claims, holders, named, keys = {}, {}, {}, {}
for i = 1, count do
  local claim, holder, key = claim_of(id_of(KEYS[tickets + i]))
  claims[i], holders[i] = claim, holder
  if key then named[claim], keys[claim] = (named[claim] or 0) + 1, key end
end

-- Returns whether the match of a claim has further tickets that this call does not name.
local function is_cut(claim)
  return claim and named[claim] and call('ZCOUNT', pending, claim, claim) > named[claim]
end

local reply, made, done = {}, {}, {}
local last, group = 0, 0
for at = 5, #ARGV, 3 do
  local first = last + 1
  last, group = last + tonumber(ARGV[at]), group + 1
  local holder, letters, all_free, is_mixed = nil, {}, true, false
  for i = first, last do
    if not holder and holders[i] and holders[i] % 2 == 1 then holder = holders[i] end
    is_mixed = is_mixed or claims[i] ~= claims[first]
  end
  for i = first, last do
    local assigned, letter = call('GET', KEYS[assignments + i]), 'f'
    if assigned then
      letter = assigned == ARGV[at + 1] and 's' or 'o'
    elseif call('EXISTS', KEYS[tickets + i]) == 0 then
      letter = 'n'
    elseif holder and holders[i] and holders[i] ~= holder or is_mixed and is_cut(claims[i]) then
      letter = 'h'
    end
    letters[#letters + 1] = letter
    all_free = all_free and letter == 'f'
  end
  if all_free and last >= first then
    made[#made + 1] = ARGV[at + 2]
    for i = first, last do
      call('SET', KEYS[assignments + i], ARGV[at + 1], 'PX', lifetime)
      call('PEXPIRE', KEYS[tickets + i], lifetime)
      done[#done + 1] = id_of(KEYS[tickets + i])
    end
  end
  reply[group] = table.concat(letters)
end
if #made == 0 then return { false, reply } end
in_chunks(done, 1000, function(from, to)
  call('SREM', all, unpack(done, from, to))
  call('ZREM', queue, unpack(done, from, to))
  call('ZREM', pending, unpack(done, from, to))
end)
changed('-', done)
for claim, key in pairs(keys) do
  if call('ZCOUNT', pending, claim, claim) == 0 then call('DEL', key) end
end
return { call('XADD', KEYS[5], '*', 'made', table.concat(made)), reply }
