-- Erasing a user removes their deliveries, also those whose notification is gone.
CREATE INDEX notification_webhook_by_user ON notification_webhook (user_id);
