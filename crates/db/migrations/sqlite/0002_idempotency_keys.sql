CREATE TABLE idempotency_keys (
    key_hash BLOB NOT NULL PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    user_id BLOB NOT NULL,
    answer TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_created_at ON idempotency_keys (created_at);
