-- What may be used once: the state of a sign-in, the id of a logout token.
CREATE TABLE session_used (
    -- SHA-256 of it.
    name BLOB NOT NULL PRIMARY KEY,
    used_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX session_used_expiry ON session_used (expires_at)
