-- The secret of admission tokens where the configuration names none: one row, so that all processes sign with the same one.
CREATE TABLE drop_token_keys (
    key_id INTEGER NOT NULL,
    secret BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (key_id)
) STRICT, WITHOUT ROWID
