-- Sessions that have ended, and groups of them: of a row that names a group, those that began before `ended_at`. Kept until none of them could
-- be used any more, because Redis may go back to a time when they were there.
CREATE TABLE session_ends (
    -- SHA-256 of what has ended: a session, the sessions of one sign-in at the issuer, of one identity, of one user.
    name BINARY(32) NOT NULL,
    -- Whose they were, where it is known: removed when the user is erased.
    user_id BINARY(16) NULL,
    ended_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name),
    KEY session_ends_expiry (expires_at),
    KEY session_ends_user (user_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
