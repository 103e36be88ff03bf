-- Users who were erased lately: a join that was already under way must not bring them back.
CREATE TABLE drop_erased_users (
    user_id BLOB NOT NULL,
    erased_at INTEGER NOT NULL,
    PRIMARY KEY (user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX drop_erased_users_by_age ON drop_erased_users (erased_at)
