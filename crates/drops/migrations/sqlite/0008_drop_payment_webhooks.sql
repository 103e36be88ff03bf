-- The webhooks of payment providers that were accepted, by the provider's own id.
CREATE TABLE drop_payment_webhooks (
    webhook_id TEXT NOT NULL,
    order_id BLOB NOT NULL,
    kind TEXT NOT NULL,
    outcome TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (webhook_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX drop_payment_webhooks_by_age ON drop_payment_webhooks (received_at)
