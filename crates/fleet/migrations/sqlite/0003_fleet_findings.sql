-- Since when each warning or failure is found. Times are by this store's clock.
CREATE TABLE fleet_findings (
    part TEXT NOT NULL,
    -- The text of the finding without its numbers, which change.
    finding TEXT NOT NULL,
    since INTEGER NOT NULL,
    -- When it was found last.
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (part, finding)
) STRICT, WITHOUT ROWID
