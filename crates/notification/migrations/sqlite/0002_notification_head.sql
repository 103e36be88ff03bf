-- How many notifications each user was ever given. Whoever adds some holds this row until they are committed, so that the positions
-- of a user become visible in their order.
CREATE TABLE notification_head (
    user_id BLOB NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL,
    -- Nothing more is kept for a user who was erased.
    erased_at INTEGER NULL
) STRICT, WITHOUT ROWID;
