-- Operators find users by their accounts.
CREATE INDEX accounts_by_account ON accounts (account_id, user_id)
