CREATE TABLE drop_orders (
    order_id BLOB NOT NULL,
    drop_id BLOB NOT NULL,
    reservation_id BLOB NOT NULL,
    user_id BLOB NOT NULL,
    account_id BLOB NOT NULL,
    state INTEGER NOT NULL,
    quantity INTEGER NOT NULL,
    -- In the smallest unit of the currency.
    amount INTEGER NOT NULL,
    currency TEXT NOT NULL,
    -- What the provider calls the payment, once it said so.
    payment TEXT NULL,
    -- The time at which the entitlement was granted. A refund revokes as of then.
    granted_at INTEGER NULL,
    -- The operator who refunded the payment by hand.
    settled_by TEXT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    -- Counts up by one with every change.
    version INTEGER NOT NULL,
    PRIMARY KEY (order_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX drop_orders_by_reservation ON drop_orders (reservation_id);
CREATE INDEX drop_orders_by_user ON drop_orders (user_id, order_id);
CREATE INDEX drop_orders_by_state ON drop_orders (state, order_id);
CREATE INDEX drop_orders_by_drop ON drop_orders (drop_id, state)
