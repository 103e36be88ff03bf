-- Every change of a stock: what the counts are the sum of.
CREATE TABLE drop_stock_ledger (
    drop_id BINARY(16) NOT NULL,
    -- The version of the stock after it. A grouped write has several entries of one version.
    version BIGINT NOT NULL,
    entry INT NOT NULL,
    kind INT NOT NULL,
    -- By how much each count changed.
    adjusted BIGINT NOT NULL,
    available BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    sold BIGINT NOT NULL,
    reservation_id BINARY(16) NULL,
    -- Of an adjustment: who made it, and why.
    actor VARCHAR(100) NULL,
    reason VARCHAR(500) NULL,
    recorded_at BIGINT NOT NULL,
    PRIMARY KEY (drop_id, version, entry)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
