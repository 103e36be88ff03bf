-- Sessions that have ended, and groups of them: of a row that names a group, those that began before `ended_at`. Kept until none of them could
-- be used any more, because Redis may go back to a time when they were there.
CREATE TABLE session_ends (
    -- SHA-256 of what has ended: a session, the sessions of one sign-in at the issuer, of one identity, of one user.
    name BLOB NOT NULL PRIMARY KEY,
    -- Whose they were, where it is known: removed when the user is erased.
    user_id BLOB NULL,
    ended_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX session_ends_expiry ON session_ends (expires_at);
CREATE INDEX session_ends_user ON session_ends (user_id)
