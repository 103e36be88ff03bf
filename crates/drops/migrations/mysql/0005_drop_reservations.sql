CREATE TABLE drop_reservations (
    reservation_id BINARY(16) NOT NULL,
    drop_id BINARY(16) NOT NULL,
    user_id BINARY(16) NOT NULL,
    account_id BINARY(16) NOT NULL,
    state INT NOT NULL,
    quantity BIGINT NOT NULL,
    -- How many of them the player owns: none until they are paid for, and none after a refund.
    confirmed BIGINT NOT NULL,
    reserved_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT NULL,
    PRIMARY KEY (reservation_id),
    KEY by_user (user_id, drop_id, state),
    KEY by_expiry (state, expires_at),
    KEY by_drop (drop_id, state)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
