-- initial + adjusted = available + reserved + sold
CREATE TABLE drop_stock (
    drop_id BLOB NOT NULL,
    initial INTEGER NOT NULL,
    adjusted INTEGER NOT NULL,
    available INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    sold INTEGER NOT NULL,
    -- Counts up with every change.
    version INTEGER NOT NULL,
    PRIMARY KEY (drop_id),
    CONSTRAINT drop_stock_is_sound CHECK (
        initial >= 0 AND available >= 0 AND reserved >= 0 AND sold >= 0 AND initial + adjusted = available + reserved + sold)
) STRICT, WITHOUT ROWID
