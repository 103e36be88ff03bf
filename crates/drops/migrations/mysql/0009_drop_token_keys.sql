-- The secret of admission tokens where the configuration names none: one row, so that all processes sign with the same one.
CREATE TABLE drop_token_keys (
    key_id INT NOT NULL,
    secret VARBINARY(64) NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (key_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
