-- What was done to users, and by whom. It outlives their erasure, so it names nothing personal.
CREATE TABLE user_audit (
    user_id BLOB NOT NULL,
    at INTEGER NOT NULL,
    audit_id BLOB NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (user_id, at, audit_id)
) STRICT, WITHOUT ROWID
