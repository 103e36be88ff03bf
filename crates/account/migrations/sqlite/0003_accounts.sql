-- The accounts of a user, one per title or persona.
CREATE TABLE accounts (
    user_id BLOB NOT NULL,
    account_id BLOB NOT NULL,
    name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (user_id, account_id),
    UNIQUE (user_id, name)
) STRICT, WITHOUT ROWID
