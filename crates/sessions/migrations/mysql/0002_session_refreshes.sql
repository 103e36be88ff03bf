-- How many refresh tokens of a session were presented to the issuer. A token that Redis brings back is not presented again.
CREATE TABLE session_refreshes (
    -- SHA-256 of the session's name.
    name BINARY(32) NOT NULL,
    user_id BINARY(16) NOT NULL,
    spent BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name),
    KEY session_refreshes_expiry (expires_at),
    KEY session_refreshes_user (user_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
