-- The tickets whose players have been gone for too long.
-- ARGV[3] how many at most.
return call('ZRANGEBYSCORE', presence, '-inf', now(), 'LIMIT', 0, ARGV[3])
