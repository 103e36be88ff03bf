-- Erasing a user removes their deliveries, also those whose notification is gone.
CREATE INDEX notification_log_by_user ON notification_log (user_id);
