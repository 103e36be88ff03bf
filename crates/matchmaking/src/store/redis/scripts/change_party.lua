-- Changes a party if it has the version that the caller read.
-- KEYS[1..4] as in preamble.lua; KEYS[5] idleEngines; KEYS[6] presence; KEYS[7] the party; KEYS[8] its join code;
-- KEYS[9] its join code before the change; KEYS[10] readyChecks; KEYS[11] readyRevision; KEYS[12] stem of checks,
-- KEYS[13] stem of pointers, KEYS[14] stem of tickets, KEYS[15] stem of assignments and KEYS[16] stem of parties: the ids come from
-- ARGV[7], from its ready check, from the players and from the members; KEYS[17..] the keys of the members after the change, of those
-- who left, of the invited and of those no longer invited; to create a ticket also the ticket, and the players of all members in
-- the same order.
-- ARGV[1] as in preamble.lua; ARGV[2] the version, 0 if there must be no party; ARGV[3] the party's data, empty to remove
-- it; ARGV[4] its lifetime in ms; ARGV[5] its id; ARGV[6] 'keep', 'idle' to refuse the change while the ticket waits,
-- 'cancel' or 'create'; ARGV[7] the party's last ticket, or empty; ARGV[8] the channel of news of ready checks; ARGV[9] the
-- channel of cancelled tickets; ARGV[10] how long the end of a ready check is remembered in ms; ARGV[11..14] how many members,
-- users who left, invited and no longer invited users there are; to create a ticket: ARGV[15] the prefix of the engines'
-- channels; ARGV[16] queue; ARGV[17] the assigned ticket that the new one replaces, or empty; ARGV[18..20] lifetime in ms,
-- creation time in µs and data of the ticket; ARGV[21] the minimum lifetime of a player's key in ms; ARGV[22] after how many ms
-- without a stream of a member the ticket is cancelled, or empty; ARGV[23..] the other queues in which a member may wait at
-- the same time.
-- Reply: a word, a number, an id, data, an assignment: 'changed', with 1 if a ready check has ended, else 0; 'stale' if the
-- version differs; 'code' if another party has the join code; 'member' with the number of a member who is in another party, and
-- that party; 'queued' if the ticket waits; 'ticket' with the party's existing ticket; 'waits' with the number of a member, the
-- ticket that the member waits with, and its queue.
-- Keeps: a user is in one party at most; a party and its ticket change together or not at all; a member who left is in no
-- ticket of the party that waits. A cancelled ticket leaves its ready check.
local presence, party, code, old_code = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local tickets, assignments, parties = KEYS[14], KEYS[15], KEYS[16]
local id, mode, ticket, life = ARGV[5], ARGV[6], ARGV[7], ARGV[4]
local members, ended = 17, 0
local left = members + tonumber(ARGV[11])
local invited = left + tonumber(ARGV[12])
local uninvited = invited + tonumber(ARGV[13])
local new_ticket = uninvited + tonumber(ARGV[14])
local players = new_ticket + 1

local function reply(word, at, of, data, assignment)
  return { word, at or 0, of or '', data or '', assignment or false }
end

if (call('HGET', party, 'version') or '0') ~= ARGV[2] then return reply('stale') end
local owner = call('GET', code)
if owner and owner ~= id then return reply('code') end
for at = members, left - 1 do
  local other = call('HGET', KEYS[at], 'party')
  if other and other ~= id and call('EXISTS', parties .. other) == 1 then
    return reply('member', at - members + 1, other)
  end
end
if mode == 'idle' and ticket ~= '' and call('SISMEMBER', all, ticket) == 1
  and call('EXISTS', tickets .. ticket) == 1 and call('EXISTS', assignments .. ticket) == 0 then
  return reply('queued')
end

local done = {}
if mode == 'create' then
  local name, allowed, waiting, assigned, elsewhere = ARGV[16], {}, nil, nil, nil
  for at = 23, #ARGV do allowed[ARGV[at]] = true end
  for number = 1, left - members do
    local player = KEYS[players + number - 1]
    each_ticket(player, presence, tickets, assignments, function(other, of, data, assignment, waits)
      if other == ticket and of == name and waits then
        waiting = reply('ticket', 0, other, data)
      elseif waits then
        if of == name or not allowed[of] then elsewhere = reply('waits', number, other, of) end
      elseif of == name then
        if other == ticket and assignment and other ~= ARGV[17] then
          assigned = reply('ticket', 0, other, data, assignment)
        else
          done[#done + 1] = { player, other }
        end
      end
    end)
  end
  if waiting or assigned or elsewhere then return waiting or assigned or elsewhere end
  if not call('SET', KEYS[new_ticket], ARGV[20], 'NX', 'PX', ARGV[18]) then
    return redis.error_reply('TAKEN there is a ticket of this id')
  end
elseif mode == 'cancel' and ticket ~= '' then
  if cancel(tickets .. ticket, assignments .. ticket, ARGV[9]) == 1 then ended = leave_check(ready_keys(10, 8), ticket) end
end

if old_code ~= code or ARGV[3] == '' then call('DEL', old_code) end
if ARGV[3] == '' then
  call('DEL', party)
else
  call('HSET', party, 'version', tonumber(ARGV[2]) + 1, 'data', ARGV[3])
  call('PEXPIRE', party, life)
  call('SET', code, id, 'PX', life)
end
for at = members, left - 1 do
  call('HSET', KEYS[at], 'party', id)
  extend_ttl(KEYS[at], life)
end
for at = left, invited - 1 do
  if call('HGET', KEYS[at], 'party') == id then call('HDEL', KEYS[at], 'party') end
end
for at = invited, uninvited - 1 do
  call('HSET', KEYS[at], 'invite:' .. id, 1)
  extend_ttl(KEYS[at], life)
end
for at = uninvited, new_ticket - 1 do call('HDEL', KEYS[at], 'invite:' .. id) end

if mode == 'create' then
  local new = id_of(KEYS[new_ticket])
  enqueue({ new }, { ARGV[19], new }, KEYS[5], ARGV[15], ARGV[18])
  -- A replaced ticket must not reappear when the new one is gone.
  for _, old in ipairs(done) do call('HDEL', old[1], old[2]) end
  for at = players, players + left - members - 1 do
    call('HSET', KEYS[at], new, ARGV[16])
    extend_ttl(KEYS[at], ARGV[21])
    if ARGV[22] ~= '' then
      call('ZADD', presence, now() + tonumber(ARGV[22]), presence_of(new, KEYS[at]))
      extend_ttl(presence, ARGV[21])
    end
  end
end
return reply('changed', ended)
