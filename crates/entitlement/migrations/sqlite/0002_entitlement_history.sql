CREATE TABLE entitlement_history (
    user_id BLOB NOT NULL,
    account_id BLOB NOT NULL,
    resource TEXT NOT NULL,
    entry INTEGER NOT NULL,
    action INTEGER NOT NULL,
    effect INTEGER NOT NULL,
    change_quantity INTEGER NULL,
    change_valid_until INTEGER NULL,
    occurred_at INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    caller TEXT NOT NULL,
    reference TEXT NULL,
    version INTEGER NOT NULL,
    state INTEGER NOT NULL,
    quantity INTEGER NULL,
    event_id BLOB NULL,
    PRIMARY KEY (user_id, account_id, resource, entry)
) STRICT, WITHOUT ROWID
