CREATE TABLE drop_entries (
    drop_id BINARY(16) NOT NULL,
    user_id BINARY(16) NOT NULL,
    account_id BINARY(16) NOT NULL,
    state INT NOT NULL,
    -- Why the player left.
    left_reason INT NULL,
    number BIGINT NOT NULL,
    place BIGINT NOT NULL,
    joined_at BIGINT NOT NULL,
    -- The id of the admission, chosen at the join: a cycle admits a range of rows with one statement.
    admission_id BINARY(16) NOT NULL,
    entered_at BIGINT NULL,
    expires_at BIGINT NULL,
    arrived_at BIGINT NULL,
    -- When the row became what it is.
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (drop_id, user_id),
    KEY by_place (drop_id, state, place, user_id),
    KEY by_expiry (drop_id, state, expires_at, user_id),
    KEY by_admission (drop_id, entered_at),
    KEY by_user (user_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
