-- Takes a ticket back.
-- ARGV[3] id.
-- Returns as `cancel` does.
return cancel(ARGV[3])
