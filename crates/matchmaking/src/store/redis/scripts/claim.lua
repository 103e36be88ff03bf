-- Marks the tickets of matches as pending, each match as a whole or not at all, and adds them to its backfill if it has
-- one.
-- KEYS[1..4] as in preamble.lua; KEYS[5] claimNumber; KEYS[6] stem of holders: the numbers come from KEYS[5] and the
-- arguments; KEYS[7] backfillAcks; then the tickets of all matches; then, for each match that has one, its backfill; then
-- the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] after how many seconds a pending ticket is active again; ARGV[3] number of tickets;
-- ARGV[4] after how many ms without an acknowledgement a backfill expires; ARGV[5] lifetime of a backfill's keys in ms;
-- then for each match: the number of its call's first claim or 0 for a new call, a description of the holder, the number of
-- tickets, and its
-- backfill: empty for none, 'new' or the generation that it must have; then its fields; if it is new also its fixed and
-- persistent parts.
-- Reply: who else holds tickets, as `program_of` names it; and for each match, the claim and 0, or an empty text and the
-- position (from 1) of the first ticket that prevents it, or -1 if its backfill does.
-- Keeps: no ticket is in two live claims; a ticket that left matchmaking is in none; no two matches have the same claim; a
-- backfill and its tickets are written with the claim or not at all.
local timeout, count, expiry, life = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local second, acks = call('TIME')[1], KEYS[7]
local live = tonumber(second) - timeout
local first, ids = 7, {}
for i = 1, count do ids[i] = id_of(KEYS[first + i]) end

-- Finds the tickets that no match can have: gone, or pending.
local taken, foreign = {}, 0
in_chunks(ids, 1000, function(from, to)
  local indexed = call('SMISMEMBER', all, unpack(ids, from, to))
  local since = call('ZMSCORE', pending, unpack(ids, from, to))
  local complete = call('EXISTS', unpack(KEYS, first + from, first + to)) == to - from + 1
  for i = from, to do
    local at = i - from + 1
    local is_pending = since[at] and tonumber(since[at]) >= live
    if is_pending then foreign = math.max(foreign, program_of(tonumber(since[at]))) end
    if indexed[at] == 0 or is_pending
      or not complete and call('EXISTS', KEYS[first + i]) == 0 then
      taken[ids[i]] = true
    end
  end
end)

-- Returns whether a match may write its backfill.
local function is_current(backfill)
  if backfill.generation == 'new' then return call('EXISTS', backfill.key) == 0 end
  -- Engines alone fill those of rule sets.
  return call('HGET', backfill.key, 'generation') == backfill.generation and call('HEXISTS', backfill.key, 'teams') == 0
    and backfill_state(acks, backfill.key, expiry) == 'live'
end

-- Returns the position of the first ticket that prevents a match, -1 if its backfill does, else 0.
local function obstacle_of(from, to, backfill)
  for i = from, to do
    if taken[ids[i]] then return i - from + 1 end
  end
  return backfill and not is_current(backfill) and -1 or 0
end

local reply, arg, ticket, key = {}, 6, 1, first + count
while arg <= #ARGV do
  local caller, holder, size, backfill = tonumber(ARGV[arg]), ARGV[arg + 1], tonumber(ARGV[arg + 2]), nil
  local from, to, generation = ticket, ticket + size - 1, ARGV[arg + 3]
  arg, ticket = arg + 4, to + 1
  if generation ~= '' then
    key = key + 1
    backfill = { key = KEYS[key], generation = generation, fields = ARGV[arg], fixed = ARGV[arg + 1], persistent = ARGV[arg + 2] }
    arg = arg + (generation == 'new' and 3 or 1)
  end
  local obstacle = obstacle_of(from, to, backfill)
  if obstacle ~= 0 then
    reply[#reply + 1] = { '', obstacle }
  else
    local number = next_number(KEYS[5], true, 2 * timeout)
    if caller == 0 then caller = number end
    local claim, marks, claimed = claim_in(second, number), {}, {}
    for i = from, to do
      taken[ids[i]] = true
      marks[#marks + 1] = claim
      marks[#marks + 1] = ids[i]
      claimed[#claimed + 1] = ids[i]
    end
    in_chunks(marks, 2000, function(from, to) call('ZADD', pending, unpack(marks, from, to)) end)
    changed('p', claimed, claim)
    if size > 0 then
      holder = string.format('%d %s', caller, holder)
      call('SET', KEYS[6] .. string.format('%020d', number), holder, 'EX', 2 * timeout)
    end
    if backfill then
      if generation == 'new' then
        write_backfill(acks, backfill.key, life, backfill.fixed, backfill.fields, backfill.persistent)
      else
        change_backfill(backfill.key, backfill.fields)
      end
      hold_tickets(backfill.key, claimed)
    end
    reply[#reply + 1] = { claim, 0 }
  end
end
return { foreign, reply }
