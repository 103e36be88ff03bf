CREATE TABLE drop_entries (
    drop_id BLOB NOT NULL,
    user_id BLOB NOT NULL,
    account_id BLOB NOT NULL,
    state INTEGER NOT NULL,
    -- Why the player left.
    left_reason INTEGER NULL,
    number INTEGER NOT NULL,
    place INTEGER NOT NULL,
    joined_at INTEGER NOT NULL,
    -- The id of the admission, chosen at the join: a cycle admits a range of rows with one statement.
    admission_id BLOB NOT NULL,
    entered_at INTEGER NULL,
    expires_at INTEGER NULL,
    arrived_at INTEGER NULL,
    -- When the row became what it is.
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (drop_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX drop_entries_by_place ON drop_entries (drop_id, state, place, user_id);
CREATE INDEX drop_entries_by_expiry ON drop_entries (drop_id, state, expires_at, user_id);
CREATE INDEX drop_entries_by_admission ON drop_entries (drop_id, entered_at);
CREATE INDEX drop_entries_by_user ON drop_entries (user_id)
