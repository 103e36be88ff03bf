-- Dead letters: deliveries that failed for good, and events that could not be understood.
CREATE TABLE notification_dlq (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Of the delivery, or made of the event's bytes.
    letter_id BLOB NOT NULL UNIQUE,
    -- event (what came from the bus), or the channel of a delivery: live, log, webhook.
    kind TEXT NOT NULL,
    -- Where it was to go. For an event, its subject.
    destination TEXT NOT NULL,
    notification_id BLOB NULL,
    user_id BLOB NULL,
    -- Where an event stands in the stream.
    stream_position INTEGER NULL,
    attempts INTEGER NOT NULL,
    cause TEXT NOT NULL,
    payload BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    died_at INTEGER NOT NULL
) STRICT;
CREATE INDEX notification_dlq_by_user ON notification_dlq (user_id);
CREATE INDEX notification_dlq_by_age ON notification_dlq (died_at, id);
