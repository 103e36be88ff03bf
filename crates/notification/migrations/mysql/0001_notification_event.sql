-- Which events were taken in. Outlives the notifications that were made of them, so that none is made twice.
CREATE TABLE notification_event (
    event_id BINARY(16) NOT NULL,
    -- The transaction that took it in.
    batch BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (event_id),
    KEY by_age (received_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
