CREATE TABLE entitlements (
    user_id BLOB NOT NULL,
    account_id BLOB NOT NULL,
    resource TEXT NOT NULL,
    state INTEGER NOT NULL,
    version INTEGER NOT NULL,
    quantity INTEGER NULL,
    valid_until INTEGER NULL,
    as_of INTEGER NOT NULL,
    revoked_as_of INTEGER NULL,
    granted_as_of INTEGER NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (user_id, account_id, resource)
) STRICT, WITHOUT ROWID
