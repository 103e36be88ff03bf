-- Erasing a user removes their deliveries, also those whose notification is gone.
CREATE INDEX notification_live_by_user ON notification_live (user_id);
