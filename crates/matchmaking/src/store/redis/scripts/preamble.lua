-- What every script begins with.
-- KEYS[1] allTickets, by which a cluster finds the slot; all other keys share its prefix.
-- ARGV[1] the key prefix; ARGV[2] the token of the lock that we hold, or nothing.
-- Keeps: a step under the lock is not done when the lock was lost.
local call = redis.call
local prefix, token = ARGV[1], ARGV[2]
local all, queue, pending = prefix .. 'allTickets', prefix .. 'ticketQueue', prefix .. 'proposed_ticket_ids'
if token ~= '' and call('GET', prefix .. 'fetchTicketsLock') ~= token then
  return redis.error_reply('LOCKLOST the lock was lost')
end
-- Calls a command with a list of any length: Lua cannot unpack more than some thousands at once.
local function in_chunks(list, size, handle)
  for from = 1, #list, size do
    handle(from, math.min(from + size - 1, #list))
  end
end
