-- The processes that run, each with its last heartbeat by this store's clock.
CREATE TABLE fleet_processes (
    process_id BLOB NOT NULL,
    version TEXT NOT NULL,
    -- Words with commas between them.
    roles TEXT NOT NULL,
    -- Where its admin listener is.
    admin TEXT NOT NULL,
    -- How often it says that it runs, in milliseconds.
    heartbeat INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (process_id)
) STRICT, WITHOUT ROWID
