-- Up to which position of the bus's stream a reader has taken everything in. Whoever takes in more locks this row, so that
-- notifications are made in the order of the stream.
CREATE TABLE notification_intake (
    reader TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
