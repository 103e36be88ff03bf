-- Operators filter dead letters by destination, and replay those of one destination.
CREATE INDEX by_destination ON notification_dlq (destination, id)
