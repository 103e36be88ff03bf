-- Assigns the tickets of groups for a Director, each group as a whole or not at all.
-- KEYS[1..4] as in preamble.lua; KEYS[5] matchEvents; then the tickets of all groups; then as many assignments, in the
-- same order; then the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many seconds a pending ticket is active again; ARGV[3] lifetime of an
-- assigned ticket in ms; ARGV[4] number of tickets; ARGV[5..] for each group: its number of tickets, the assignment, the
-- encoded match for watchers and the recorder.
-- Reply: the id of the entry in matchEvents, or nil if no group was assigned; and for each group a letter per ticket: 'f'
-- for a free ticket, 's' for one that has this same assignment, 'o' for one that has another, 'n' for one that does not
-- exist, 'h' for one that another holder has claimed. A group was assigned if all its letters are 'f'.
-- Keeps: no ticket is ever assigned twice; assignment, removal from matchmaking and the matchEvents entry are one step.
-- Notifies no player: notify.lua does that once the matches are recorded.
local timeout, lifetime, count = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local tickets, assignments = 5, 5 + count
local live = tonumber(call('TIME')[1]) - timeout

-- Returns the number of the holder that has claimed a ticket: odd for a Director. Returns nil without a live claim.
local function holder_of(id)
  local score = tonumber(call('ZSCORE', pending, id) or nil)
  if score and score >= live then return (score % 1) * 2097152 end
end

local reply, made, done = {}, {}, {}
local last, group = 0, 0
for at = 5, #ARGV, 3 do
  local first = last + 1
  last, group = last + tonumber(ARGV[at]), group + 1
  local holders, holder, letters, all_free = {}, nil, {}, true
  for i = first, last do
    holders[i] = holder_of(id_of(KEYS[tickets + i]))
    if not holder and holders[i] and holders[i] % 2 == 1 then holder = holders[i] end
  end
  for i = first, last do
    local assigned, letter = call('GET', KEYS[assignments + i]), 'f'
    if assigned then
      letter = assigned == ARGV[at + 1] and 's' or 'o'
    elseif call('EXISTS', KEYS[tickets + i]) == 0 then
      letter = 'n'
    elseif holder and holders[i] and holders[i] ~= holder then
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
return { call('XADD', KEYS[5], '*', 'made', table.concat(made)), reply }
