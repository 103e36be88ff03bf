-- What may be used once: the state of a sign-in, the id of a logout token.
CREATE TABLE session_used (
    -- SHA-256 of it.
    name BINARY(32) NOT NULL,
    used_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name),
    KEY session_used_expiry (expires_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
