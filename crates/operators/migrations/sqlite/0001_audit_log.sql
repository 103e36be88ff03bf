-- What operators changed, and what they were refused. A row is inserted before the change. Its outcome is set once.
CREATE TABLE audit_log (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    entry_id BLOB NOT NULL UNIQUE,
    at INTEGER NOT NULL,
    listener TEXT NOT NULL,
    actor_kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    proof TEXT NOT NULL,
    subject TEXT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    address TEXT NULL,
    request_id TEXT NULL,
    note TEXT NULL,
    outcome TEXT NULL,
    status INTEGER NULL,
    finished_at INTEGER NULL
) STRICT;
CREATE INDEX audit_log_at ON audit_log (at);
CREATE INDEX audit_log_actor ON audit_log (actor, number)
