-- Which events were taken in. Outlives the notifications that were made of them, so that none is made twice.
CREATE TABLE notification_event (
    event_id BLOB NOT NULL PRIMARY KEY,
    -- The transaction that took it in.
    batch INTEGER NOT NULL,
    received_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX notification_event_by_age ON notification_event (received_at);
