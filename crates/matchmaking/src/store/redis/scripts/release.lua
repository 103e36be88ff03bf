-- Makes pending tickets active again.
-- ARGV[3..] ids.
in_chunks(ARGV, 1000, function(from, to)
  if from == 1 then from = 3 end
  if from <= to then call('ZREM', pending, unpack(ARGV, from, to)) end
end)
return redis.status_reply('OK')
