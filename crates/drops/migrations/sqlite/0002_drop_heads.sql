-- What joins and admission cycles of a drop take one after the other.
CREATE TABLE drop_heads (
    drop_id BLOB NOT NULL,
    -- The number of the last join.
    joined INTEGER NOT NULL,
    -- When the last admission cycle was, by the database's clock.
    cycled_at INTEGER NOT NULL,
    cycles INTEGER NOT NULL,
    -- What the no-show controller has measured: versioned JSON.
    controller TEXT NOT NULL,
    PRIMARY KEY (drop_id)
) STRICT, WITHOUT ROWID
