-- Servers that a service was asked for, until their match is recorded, given back or has none.
CREATE TABLE matchmaking_allocation (
    match_id BLOB NOT NULL PRIMARY KEY,
    assigner TEXT NOT NULL,
    profile TEXT NOT NULL,
    ticket_ids TEXT NOT NULL,
    asked_at INTEGER NOT NULL
) STRICT;
CREATE INDEX matchmaking_allocation_by_asked_at ON matchmaking_allocation (asked_at, match_id);
