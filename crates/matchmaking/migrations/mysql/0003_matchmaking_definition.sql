-- All versions of the rule sets, profiles and queues that were set at run time. Rows are only added.
-- Of two writers that checked the same revision, the second one fails.
CREATE TABLE matchmaking_definition (
    kind VARCHAR(16) NOT NULL,
    name VARCHAR(64) NOT NULL,
    version BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    state VARCHAR(16) NOT NULL,
    content MEDIUMTEXT NOT NULL,
    author VARCHAR(255) NOT NULL,
    note VARCHAR(500) NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (kind, name, version),
    UNIQUE KEY by_revision (revision)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
