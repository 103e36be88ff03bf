-- Adds players to a line that is being filled.
-- KEYS[1] the line; KEYS[2] the token of the fill in progress.
-- ARGV[1] the caller's token; ARGV[2] its lease in ms; ARGV[3..] for each player: place, user id.
-- Reply: 1, or 0 if the caller's lease was lost; then nothing was added.
-- Keeps: only the fill in progress adds to the line.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
for at = 3, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], ARGV[at], ARGV[at + 1])
end
return 1
