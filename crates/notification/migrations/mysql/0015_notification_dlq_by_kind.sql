-- Operators filter dead letters by kind.
CREATE INDEX by_kind ON notification_dlq (kind, id)
