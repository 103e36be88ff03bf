-- Since when each warning or failure is found. Times are by this server's clock.
CREATE TABLE fleet_findings (
    part VARCHAR(50) NOT NULL,
    -- The text of the finding without its numbers, which change.
    finding VARCHAR(200) NOT NULL,
    since BIGINT NOT NULL,
    -- When it was found last.
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (part, finding)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
