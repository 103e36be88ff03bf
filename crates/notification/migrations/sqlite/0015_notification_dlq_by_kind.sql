-- Operators filter dead letters by kind.
CREATE INDEX notification_dlq_by_kind ON notification_dlq (kind, id)
