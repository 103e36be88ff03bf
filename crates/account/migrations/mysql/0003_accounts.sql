-- The accounts of a user, one per title or persona.
CREATE TABLE accounts (
    user_id BINARY(16) NOT NULL,
    account_id BINARY(16) NOT NULL,
    name VARCHAR(100) NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, account_id),
    UNIQUE KEY by_name (user_id, name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
