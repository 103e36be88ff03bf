-- How often the user's marks have changed the counts of the inbox. A stream that knows a smaller number reads the counts again.
ALTER TABLE notification_head ADD COLUMN marks INTEGER NOT NULL DEFAULT 0
