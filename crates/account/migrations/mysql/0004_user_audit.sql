-- What was done to users, and by whom. It outlives their erasure, so it names nothing personal.
CREATE TABLE user_audit (
    user_id BINARY(16) NOT NULL,
    at BIGINT NOT NULL,
    audit_id BINARY(16) NOT NULL,
    actor VARCHAR(255) NOT NULL,
    action VARCHAR(32) NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (user_id, at, audit_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
