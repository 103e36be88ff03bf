-- The inboxes: what each user was told, in the order in which they were told.
CREATE TABLE notification (
    user_id BLOB NOT NULL,
    position INTEGER NOT NULL,
    notification_id BLOB NOT NULL UNIQUE,
    template TEXT NOT NULL,
    -- JSON: title and body by language.
    texts TEXT NOT NULL,
    -- JSON: what the texts were made of.
    data TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NULL,
    seen_at INTEGER NULL,
    read_at INTEGER NULL,
    archived_at INTEGER NULL,
    -- When the row may go: retention, expiry and reading all tell on it.
    remove_at INTEGER NOT NULL,
    PRIMARY KEY (user_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX notification_by_unread ON notification (user_id, archived_at, read_at, expires_at, seen_at);
CREATE INDEX notification_by_end ON notification (remove_at);
