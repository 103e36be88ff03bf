-- Dead letters: deliveries that failed for good, and events that could not be understood.
CREATE TABLE notification_dlq (
    id BIGINT NOT NULL AUTO_INCREMENT,
    -- Of the delivery, or made of the event's bytes.
    letter_id BINARY(16) NOT NULL,
    -- event (what came from the bus), or the channel of a delivery: live, log, webhook.
    kind VARCHAR(16) NOT NULL,
    -- Where it was to go. For an event, its subject.
    destination VARCHAR(600) NOT NULL,
    notification_id BINARY(16) NULL,
    user_id BINARY(16) NULL,
    -- Where an event stands in the stream.
    stream_position BIGINT NULL,
    attempts INT NOT NULL,
    cause VARCHAR(1000) NOT NULL,
    payload MEDIUMBLOB NOT NULL,
    created_at BIGINT NOT NULL,
    died_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY by_letter_id (letter_id),
    KEY by_user (user_id),
    KEY by_age (died_at, id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
