-- Servers that a service was asked for, until their match is recorded, given back or has none.
CREATE TABLE matchmaking_allocation (
    match_id BINARY(16) NOT NULL,
    assigner VARCHAR(600) NOT NULL,
    profile VARCHAR(600) NOT NULL,
    ticket_ids MEDIUMTEXT NOT NULL,
    asked_at BIGINT NOT NULL,
    PRIMARY KEY (match_id),
    KEY by_asked_at (asked_at, match_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
