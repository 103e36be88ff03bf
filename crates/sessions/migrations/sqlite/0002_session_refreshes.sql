-- How many refresh tokens of a session were presented to the issuer. A token that Redis brings back is not presented again.
CREATE TABLE session_refreshes (
    -- SHA-256 of the session's name.
    name BLOB NOT NULL PRIMARY KEY,
    user_id BLOB NOT NULL,
    spent INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX session_refreshes_expiry ON session_refreshes (expires_at);
CREATE INDEX session_refreshes_user ON session_refreshes (user_id)
