-- Operators who are signed in at the console. A browser holds the secret. The row has only its SHA-256.
CREATE TABLE console_sessions (
    secret_hash TEXT NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    token_hash TEXT NULL,
    subject TEXT NULL,
    read_only INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX console_sessions_expires ON console_sessions (expires_at)
