-- Operators filter dead letters by destination, and replay those of one destination.
CREATE INDEX notification_dlq_by_destination ON notification_dlq (destination, id)
