-- The inboxes: what each user was told, in the order in which they were told.
CREATE TABLE notification (
    user_id BINARY(16) NOT NULL,
    position BIGINT NOT NULL,
    notification_id BINARY(16) NOT NULL,
    template VARCHAR(64) NOT NULL,
    -- JSON: title and body by language.
    texts MEDIUMTEXT NOT NULL,
    -- JSON: what the texts were made of.
    data MEDIUMTEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NULL,
    seen_at BIGINT NULL,
    read_at BIGINT NULL,
    archived_at BIGINT NULL,
    -- When the row may go: retention, expiry and reading all tell on it.
    remove_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, position),
    UNIQUE KEY by_notification_id (notification_id),
    KEY by_unread (user_id, archived_at, read_at, expires_at, seen_at),
    KEY by_end (remove_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
