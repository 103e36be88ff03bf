-- Makes pending tickets active again.
-- KEYS[1..4] as in preamble.lua.
-- ARGV[1] as in preamble.lua; ARGV[2..] ids.
-- Reply: OK.
in_chunks(ARGV, 1000, function(from, to)
  if from == 1 then from = 2 end
  if from <= to then call('ZREM', pending, unpack(ARGV, from, to)) end
end)
return redis.status_reply('OK')
