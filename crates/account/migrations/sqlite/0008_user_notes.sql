-- Notes of operators about users. They are removed when the user is erased.
CREATE TABLE user_notes (
    user_id BLOB NOT NULL,
    at INTEGER NOT NULL,
    note_id BLOB NOT NULL,
    author TEXT NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (user_id, at, note_id)
) STRICT, WITHOUT ROWID
