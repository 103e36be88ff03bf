-- By what users sign in. The hash is that of issuer and subject, which are too long for an index together.
CREATE TABLE identities (
    identity_hash BLOB NOT NULL PRIMARY KEY,
    user_id BLOB NOT NULL,
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    linked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX identities_by_user ON identities (user_id)
