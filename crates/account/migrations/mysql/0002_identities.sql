-- By what users sign in. The hash is that of issuer and subject, which are too long for an index together.
CREATE TABLE identities (
    identity_hash BINARY(32) NOT NULL,
    user_id BINARY(16) NOT NULL,
    issuer VARCHAR(500) NOT NULL,
    subject VARCHAR(255) NOT NULL,
    linked_at BIGINT NOT NULL,
    PRIMARY KEY (identity_hash),
    KEY by_user (user_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
