-- Webhook destinations that said that they are gone.
CREATE TABLE notification_destination (
    name VARCHAR(64) NOT NULL,
    disabled_at BIGINT NOT NULL,
    cause VARCHAR(1000) NOT NULL,
    PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
