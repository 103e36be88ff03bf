-- Numbers claims, and compares them.
-- KEYS[1..4] as in preamble.lua. A claim is a score in `proposed_ticket_ids`: the Unix second in which it began, and as
-- fraction its number of 2^21. A score without a fraction was written by another program.
-- ARGV: none of its own.
-- Defines: `next_number`, `claim_in`, `is_claim`, `program_of`.

-- Returns the next number: odd for a Director, even for an engine. The counter may expire once no claim of it is live,
-- because later claims begin in a later second.
local function next_number(counter, is_director, lifetime)
  local count = call('INCR', counter)
  call('EXPIRE', counter, lifetime)
  return 2 * (1 + count % 1048575) + (is_director and 1 or 0)
end

-- Returns the claim of this number that begins in this second, as text that keeps every digit.
local function claim_in(second, number)
  return string.format('%.17g', tonumber(second) + number / 2097152)
end

-- Returns whether a score is this claim. Most scores of a call are the same text, so the last one is remembered.
local last_text, last_score
local function is_claim(score, claim)
  if score ~= last_text then last_text, last_score = score, tonumber(score) end
  return last_score == claim
end

-- Returns which program has written a score: 0 for one of ours, whose scores have a fraction, 1 for minimatch, 2 for Open
-- Match, whose scores are nanoseconds.
local function program_of(score)
  if score % 1 ~= 0 then return 0 end
  return score > 1e12 and 2 or 1
end
