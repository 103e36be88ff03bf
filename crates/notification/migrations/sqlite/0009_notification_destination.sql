-- Webhook destinations that said that they are gone.
CREATE TABLE notification_destination (
    name TEXT NOT NULL PRIMARY KEY,
    disabled_at INTEGER NOT NULL,
    cause TEXT NOT NULL
) STRICT;
