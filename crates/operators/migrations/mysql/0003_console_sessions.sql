-- Operators who are signed in at the console. A browser holds the secret. The row has only its SHA-256.
CREATE TABLE console_sessions (
    secret_hash CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    operator VARCHAR(255) NOT NULL,
    token_hash CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    subject VARCHAR(255) NULL,
    read_only SMALLINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    INDEX console_sessions_expires (expires_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
