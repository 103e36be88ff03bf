-- Operators find users by their names.
CREATE INDEX by_display_name ON users (display_name, user_id)
