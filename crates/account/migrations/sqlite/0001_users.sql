-- Users. An erased one stays as a row without anything personal in it.
CREATE TABLE users (
    user_id BLOB NOT NULL PRIMARY KEY,
    state TEXT NOT NULL,
    display_name TEXT NULL,
    -- Words with commas between them.
    roles TEXT NOT NULL,
    ban_reason TEXT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID
