-- Operators find purchases by what the shop calls them.
CREATE INDEX by_reference ON entitlement_history (reference)
