-- Takes the ready checks that everybody has accepted, and ends those whose time is up or that lost a ticket.
-- KEYS[1..4] as in preamble.lua; KEYS[5] readyChecks; KEYS[6] readyRevision; KEYS[7] stem of checks, KEYS[8] stem of pointers,
-- KEYS[9] stem of tickets and KEYS[10] stem of assignments: the ids come from KEYS[5] and the checks; KEYS[11] claimNumber;
-- then the keys of refuse_beside_lock.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] the channel of news; ARGV[3] the channel of cancelled tickets; ARGV[4] how long the end of
-- a check is remembered in ms; ARGV[5] after how many seconds a pending ticket is active again; ARGV[6] for how many ms a check
-- is taken; ARGV[7] the maximum number of checks.
-- Reply: how many checks are open; the claim on the taken ones or an empty text; for each taken one its id, its match, how
-- often it was taken, the ms from opening to the last acceptance, and its tickets; and why each of the others has ended.
-- Keeps: one engine at a time has an accepted match; a later one fences off the earlier one by its claim.
local ready, timeout, lease = ready_keys(5, 2), tonumber(ARGV[5]), tonumber(ARGV[6])
local now, claim, taken, ended = ms(), nil, {}, {}
for _, id in ipairs(call('ZRANGEBYSCORE', ready.due, '-inf', now, 'LIMIT', 0, ARGV[7])) do
  local check = load_check(ready, id)
  if not check then
    call('ZREM', ready.due, id)
  elseif not is_whole(ready, check) then
    -- After its match was assigned nothing is left to end.
    ended[#ended + 1] = tonumber(check.taken) > 0 and 'settled' or 'lost'
    end_check(ready, check, ended[#ended])
  elseif check.accepted == check.players then
    claim = claim or claim_in(call('TIME')[1], next_number(KEYS[11], false, 2 * timeout))
    for _, ticket in ipairs(check.ids) do
      call('ZADD', pending, claim, ticket)
      call('PEXPIRE', ready.pointers .. ticket, 2000 * timeout + lease)
    end
    call('HSET', check.key, 'claim', call('ZSCORE', pending, check.ids[1]))
    changed('p', check.ids, claim)
    local times = call('HINCRBY', check.key, 'taken', 1)
    call('ZADD', ready.due, now + lease, id)
    call('PEXPIRE', check.key, 2000 * timeout + lease)
    if call('PTTL', ready.due) < 2000 * timeout + lease then call('PEXPIRE', ready.due, 2000 * timeout + lease) end
    local time = tonumber(check.complete) - tonumber(check.opened)
    taken[#taken + 1] = { id, check.match, times, time, check.ids }
  elseif now >= tonumber(check.deadline) then
    ended[#ended + 1] = 'no-answer'
    end_check(ready, check, 'no-answer')
  else
    call('ZADD', ready.due, check.deadline, id)
  end
end
return { call('ZCARD', ready.due), claim or '', taken, ended }
