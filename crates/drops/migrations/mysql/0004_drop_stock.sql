-- initial + adjusted = available + reserved + sold
CREATE TABLE drop_stock (
    drop_id BINARY(16) NOT NULL,
    initial BIGINT NOT NULL,
    adjusted BIGINT NOT NULL,
    available BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    sold BIGINT NOT NULL,
    -- Counts up with every change.
    version BIGINT NOT NULL,
    PRIMARY KEY (drop_id),
    CONSTRAINT drop_stock_is_sound CHECK (
        initial >= 0 AND available >= 0 AND reserved >= 0 AND sold >= 0 AND initial + adjusted = available + reserved + sold)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
