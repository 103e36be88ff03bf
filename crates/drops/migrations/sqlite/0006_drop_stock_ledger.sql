-- Every change of a stock: what the counts are the sum of.
CREATE TABLE drop_stock_ledger (
    drop_id BLOB NOT NULL,
    -- The version of the stock after it. A grouped write has several entries of one version.
    version INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    -- By how much each count changed.
    adjusted INTEGER NOT NULL,
    available INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    sold INTEGER NOT NULL,
    reservation_id BLOB NULL,
    -- Of an adjustment: who made it, and why.
    actor TEXT NULL,
    reason TEXT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (drop_id, version, entry)
) STRICT, WITHOUT ROWID
