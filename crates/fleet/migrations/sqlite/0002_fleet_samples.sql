-- Figures of each process over the last hour, for charts. Times are by this store's clock.
CREATE TABLE fleet_samples (
    at INTEGER NOT NULL,
    process_id BLOB NOT NULL,
    -- A JSON object: the value of each figure.
    figures TEXT NOT NULL,
    PRIMARY KEY (at, process_id)
) STRICT, WITHOUT ROWID
