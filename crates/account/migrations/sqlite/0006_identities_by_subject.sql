-- Operators find users by what an issuer calls them.
CREATE INDEX identities_by_subject ON identities (subject, user_id)
