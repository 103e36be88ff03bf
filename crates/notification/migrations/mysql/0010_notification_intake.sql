-- Up to which position of the bus's stream a reader has taken everything in. Whoever takes in more locks this row, so that
-- notifications are made in the order of the stream.
CREATE TABLE notification_intake (
    reader VARCHAR(64) NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (reader)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
