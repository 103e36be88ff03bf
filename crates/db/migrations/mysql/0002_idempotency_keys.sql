CREATE TABLE idempotency_keys (
    key_hash BINARY(32) NOT NULL,
    fingerprint BINARY(32) NOT NULL,
    user_id BINARY(16) NOT NULL,
    answer MEDIUMTEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (key_hash),
    KEY by_created_at (created_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
