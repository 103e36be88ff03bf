-- What joins and admission cycles of a drop take one after the other.
CREATE TABLE drop_heads (
    drop_id BINARY(16) NOT NULL,
    -- The number of the last join.
    joined BIGINT NOT NULL,
    -- When the last admission cycle was, by the database's clock.
    cycled_at BIGINT NOT NULL,
    cycles BIGINT NOT NULL,
    -- What the no-show controller has measured: versioned JSON.
    controller MEDIUMTEXT NOT NULL,
    PRIMARY KEY (drop_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
