-- Locked by every join, every admission cycle and every change of a drop's state: they exclude each other.
CREATE TABLE drop_heads (
    drop_id BINARY(16) NOT NULL,
    -- The number of the last join.
    joined BIGINT NOT NULL,
    -- When the last admission cycle was due, by the database's clock.
    cycled_at BIGINT NOT NULL,
    cycles BIGINT NOT NULL,
    -- What admission cycles have measured (no-shows, pace): versioned JSON.
    controller MEDIUMTEXT NOT NULL,
    -- When the line of a drop that is over was removed from Redis for the last time. Null: the reconciler has to remove it.
    line_removed_at BIGINT NULL,
    PRIMARY KEY (drop_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
