-- Starts every script: names the shared keys and checks the lock.
-- KEYS[1] allTickets; KEYS[2] ticketQueue; KEYS[3] proposed_ticket_ids; KEYS[4] fetchTicketsLock; the last key
-- ticketChanges, which is removed from KEYS, so that a script's own keys may be a list that ends at #KEYS.
-- ARGV[1] the token of the lock that the caller holds, or empty.
-- Defines: `all`, `queue`, `pending`, `changes`, `id_of`, `in_chunks`, `changed`.
-- Keeps: a script that runs under the lock does nothing if the lock was lost; a change of allTickets, of
-- proposed_ticket_ids or of a backfill, and its entry in ticketChanges, are one step.
local call = redis.call
local all, queue, pending, changes = KEYS[1], KEYS[2], KEYS[3], table.remove(KEYS)
if ARGV[1] ~= '' and call('GET', KEYS[4]) ~= ARGV[1] then
  return redis.error_reply('LOCKLOST the lock was lost')
end
-- Returns the id of a ticket: its key without the common key prefix.
local first = #all - #'allTickets' + 1
local function id_of(ticket) return string.sub(ticket, first) end
-- Calls `handle` for each chunk of a list, because Lua cannot unpack more than a few thousand values at once.
local function in_chunks(list, size, handle)
  for from = 1, #list, size do
    handle(from, math.min(from + size - 1, #list))
  end
end
-- Appends a change of these tickets or backfills to ticketChanges, for the processes that answer queries: '+' created,
-- '-' left matchmaking, 'p' pending since the second `since`, 'r' released, 'a' all released; backfills: 'bk' created or
-- acknowledged at the millisecond `since`, 'bc' changed, 'bd' deleted. The stream exists only while a process reads it.
local function changed(what, ids, since)
  if #ids == 0 or call('EXISTS', changes) == 0 then return end
  call('XADD', changes, 'MAXLEN', '~', 20000, '*', what, (since and since .. ' ' or '') .. table.concat(ids, ' '))
end
