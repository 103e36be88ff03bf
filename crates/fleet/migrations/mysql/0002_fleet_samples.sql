-- Figures of each process over the last hour, for charts. Times are by this server's clock.
CREATE TABLE fleet_samples (
    at BIGINT NOT NULL,
    process_id BINARY(16) NOT NULL,
    -- A JSON object: the value of each figure.
    figures TEXT NOT NULL,
    PRIMARY KEY (at, process_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
