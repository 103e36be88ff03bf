-- Begins every step: names the keys that all steps share, and checks the lock.
-- KEYS[1] allTickets; KEYS[2] ticketQueue; KEYS[3] proposed_ticket_ids; KEYS[4] fetchTicketsLock.
-- ARGV[1] the token of the lock that the caller holds, or nothing.
-- Defines: `all`, `queue`, `pending`, `id_of`, `in_chunks`.
-- Keeps: a step under the lock is not done when the lock was lost.
local call = redis.call
local all, queue, pending = KEYS[1], KEYS[2], KEYS[3]
if ARGV[1] ~= '' and call('GET', KEYS[4]) ~= ARGV[1] then
  return redis.error_reply('LOCKLOST the lock was lost')
end
-- Returns the id of a ticket, which is its key without the prefix that all keys have.
local first = #all - #'allTickets' + 1
local function id_of(ticket) return string.sub(ticket, first) end
-- Calls a command with a list of any length: Lua cannot unpack more than some thousands at once.
local function in_chunks(list, size, handle)
  for from = 1, #list, size do
    handle(from, math.min(from + size - 1, #list))
  end
end
