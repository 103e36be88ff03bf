-- What operators changed, and what they were refused. A row is inserted before the change. Its outcome is set once.
CREATE TABLE audit_log (
    number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    entry_id BINARY(16) NOT NULL UNIQUE,
    at BIGINT NOT NULL,
    listener VARCHAR(16) NOT NULL,
    actor_kind VARCHAR(16) NOT NULL,
    actor VARCHAR(255) NOT NULL,
    proof VARCHAR(32) NOT NULL,
    subject VARCHAR(255) NULL,
    action VARCHAR(255) NOT NULL,
    target VARCHAR(1000) NOT NULL,
    address VARCHAR(45) NULL,
    request_id VARCHAR(64) NULL,
    note VARCHAR(500) NULL,
    outcome VARCHAR(16) NULL,
    status SMALLINT NULL,
    finished_at BIGINT NULL,
    INDEX audit_log_at (at),
    INDEX audit_log_actor (actor, number)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
