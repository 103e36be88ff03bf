CREATE TABLE entitlements (
    user_id BINARY(16) NOT NULL,
    account_id BINARY(16) NOT NULL,
    resource VARCHAR(255) NOT NULL,
    state INT NOT NULL,
    version BIGINT NOT NULL,
    quantity BIGINT NULL,
    valid_until BIGINT NULL,
    as_of BIGINT NOT NULL,
    revoked_as_of BIGINT NULL,
    granted_as_of BIGINT NULL,
    entries BIGINT NOT NULL,
    PRIMARY KEY (user_id, account_id, resource)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
