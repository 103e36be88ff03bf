CREATE TABLE drop_reservations (
    reservation_id BLOB NOT NULL,
    drop_id BLOB NOT NULL,
    user_id BLOB NOT NULL,
    account_id BLOB NOT NULL,
    state INTEGER NOT NULL,
    quantity INTEGER NOT NULL,
    -- How many of them the player owns: none until they are paid for, and none after a refund.
    confirmed INTEGER NOT NULL,
    reserved_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER NULL,
    PRIMARY KEY (reservation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX drop_reservations_by_user ON drop_reservations (user_id, drop_id, state);
CREATE INDEX drop_reservations_by_expiry ON drop_reservations (state, expires_at);
CREATE INDEX drop_reservations_by_drop ON drop_reservations (drop_id, state)
