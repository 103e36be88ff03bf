CREATE TABLE entitlement_history (
    user_id BINARY(16) NOT NULL,
    account_id BINARY(16) NOT NULL,
    resource VARCHAR(255) NOT NULL,
    entry BIGINT NOT NULL,
    action INT NOT NULL,
    effect INT NOT NULL,
    change_quantity BIGINT NULL,
    change_valid_until BIGINT NULL,
    occurred_at BIGINT NOT NULL,
    recorded_at BIGINT NOT NULL,
    caller VARCHAR(100) NOT NULL,
    reference VARCHAR(255) NULL,
    version BIGINT NOT NULL,
    state INT NOT NULL,
    quantity BIGINT NULL,
    event_id BINARY(16) NULL,
    PRIMARY KEY (user_id, account_id, resource, entry)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
