-- The processes that run, each with its last heartbeat by this server's clock.
CREATE TABLE fleet_processes (
    process_id BINARY(16) NOT NULL,
    version VARCHAR(50) NOT NULL,
    -- Words with commas between them.
    roles VARCHAR(500) NOT NULL,
    -- Where its admin listener is.
    admin VARCHAR(255) NOT NULL,
    -- How often it says that it runs, in milliseconds.
    heartbeat BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (process_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
