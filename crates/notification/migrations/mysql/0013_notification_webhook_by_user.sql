-- Erasing a user removes their deliveries, also those whose notification is gone.
CREATE INDEX by_user ON notification_webhook (user_id)
