-- Payments that succeeded for an order which another payment had paid for: each must be refunded.
CREATE TABLE drop_surplus_payments (
    order_id BINARY(16) NOT NULL,
    -- What the provider calls the payment.
    payment VARCHAR(255) NOT NULL,
    -- 0: a refund is due. 1: refunded.
    state INT NOT NULL,
    received_at BIGINT NOT NULL,
    -- The operator who refunded it by hand.
    settled_by VARCHAR(100) NULL,
    settled_at BIGINT NULL,
    PRIMARY KEY (order_id, payment),
    KEY by_state (state, received_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
