-- Locked by every join, every admission cycle and every change of a drop's state: they exclude each other.
CREATE TABLE drop_heads (
    drop_id BLOB NOT NULL,
    -- The number of the last join.
    joined INTEGER NOT NULL,
    -- When the last admission cycle was due, by the database's clock.
    cycled_at INTEGER NOT NULL,
    cycles INTEGER NOT NULL,
    -- What admission cycles have measured (no-shows, pace): versioned JSON.
    controller TEXT NOT NULL,
    -- When the line of a drop that is over was removed from Redis for the last time. Null: the reconciler has to remove it.
    line_removed_at INTEGER NULL,
    PRIMARY KEY (drop_id)
) STRICT, WITHOUT ROWID
