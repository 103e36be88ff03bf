-- Payments that succeeded for an order which another payment had paid for: each must be refunded.
CREATE TABLE drop_surplus_payments (
    order_id BLOB NOT NULL,
    -- What the provider calls the payment.
    payment TEXT NOT NULL,
    -- 0: a refund is due. 1: refunded.
    state INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    -- The operator who refunded it by hand.
    settled_by TEXT NULL,
    settled_at INTEGER NULL,
    PRIMARY KEY (order_id, payment)
) STRICT, WITHOUT ROWID;
CREATE INDEX drop_surplus_payments_by_state ON drop_surplus_payments (state, received_at)
