-- The webhooks of payment providers that were accepted, by the provider's own id.
CREATE TABLE drop_payment_webhooks (
    webhook_id VARCHAR(255) NOT NULL,
    order_id BINARY(16) NOT NULL,
    kind VARCHAR(50) NOT NULL,
    outcome VARCHAR(50) NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (webhook_id),
    KEY by_age (received_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
