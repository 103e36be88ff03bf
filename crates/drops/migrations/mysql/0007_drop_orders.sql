CREATE TABLE drop_orders (
    order_id BINARY(16) NOT NULL,
    drop_id BINARY(16) NOT NULL,
    reservation_id BINARY(16) NOT NULL,
    user_id BINARY(16) NOT NULL,
    account_id BINARY(16) NOT NULL,
    state INT NOT NULL,
    quantity BIGINT NOT NULL,
    -- In the smallest unit of the currency.
    amount BIGINT NOT NULL,
    currency CHAR(3) NOT NULL,
    -- What the provider calls the payment, once it said so.
    payment VARCHAR(255) NULL,
    -- The time at which the entitlement was granted. A refund revokes as of then.
    granted_at BIGINT NULL,
    -- The operator who refunded the payment by hand.
    settled_by VARCHAR(100) NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    -- Counts up by one with every change.
    version BIGINT NOT NULL,
    PRIMARY KEY (order_id),
    UNIQUE KEY by_reservation (reservation_id),
    KEY by_user (user_id, order_id),
    KEY by_state (state, order_id),
    KEY by_drop (drop_id, state)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
