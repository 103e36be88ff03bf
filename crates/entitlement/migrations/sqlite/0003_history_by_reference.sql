-- Operators find purchases by what the shop calls them.
CREATE INDEX entitlement_history_by_reference ON entitlement_history (reference)
