//! The ids of webhooks that were recorded.

use std::collections::HashSet;
use std::time::Duration;

use db::{Db, Error, Tx};
use sqlx::AssertSqlSafe;

use crate::OrderId;
use crate::orders::model::{OrderState, Webhook};
use crate::stock::store::uuid;

const FIND: &str = "SELECT order_id, kind FROM drop_payment_webhooks WHERE webhook_id = ?";
const RECEIVED: &str = "SELECT webhook_id FROM drop_payment_webhooks WHERE webhook_id IN ({list})";
const ADD: &str = "INSERT INTO drop_payment_webhooks (webhook_id, order_id, kind, outcome, received_at)";
/// SQLite has no LIMIT for DELETE.
const PRUNE_SQLITE: &str = "DELETE FROM drop_payment_webhooks WHERE webhook_id IN \
    (SELECT webhook_id FROM drop_payment_webhooks WHERE received_at < {now} - ? ORDER BY received_at LIMIT ?)";
const PRUNE_MYSQL: &str =
    "DELETE FROM drop_payment_webhooks WHERE received_at < {now} - ? ORDER BY received_at LIMIT ?";

/// Reads the order and the kind of the webhook with this id, if it was received before.
pub(crate) async fn find_webhook(tx: &mut Tx, id: &str) -> Result<Option<(OrderId, String)>, Error> {
    let row: Option<(Vec<u8>, String)> = db::on!(tx, connection => {
        sqlx::query_as(FIND).bind(id).fetch_optional(connection).await?
    });
    Ok(row.map(|(order, kind)| (OrderId::from_uuid(uuid(&order)), kind)))
}

/// Returns the ids among `ids` whose webhook was received before. `ids` must not be empty.
pub(crate) async fn received_webhooks(tx: &mut Tx, ids: &[&str]) -> Result<HashSet<String>, Error> {
    let (text, padding) = db::list_text(RECEIVED, ids.len());
    let rows: Vec<String> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_scalar(text), ids, padding).fetch_all(connection).await?
    });
    Ok(rows.into_iter().collect())
}

/// Records webhooks at the commit, each with the order's state after it.
pub(crate) fn add_webhooks<'a>(tx: &mut Tx, webhooks: impl IntoIterator<Item = (&'a Webhook, OrderState)>) {
    let row = |(webhook, state): (&'a Webhook, OrderState)| {
        [
            webhook.id.as_str().into(),
            webhook.order.as_uuid().into(),
            webhook.kind.as_str().into(),
            state.as_str().into(),
            db::Value::Now,
        ]
    };
    tx.insert_at_commit(ADD, webhooks.into_iter().map(row));
}

/// Removes up to `limit` webhook ids that were received longer ago than `retention`. Returns how many.
pub(crate) async fn prune_webhooks(db: &Db, retention: Duration, limit: u32) -> Result<u64, Error> {
    let mut tx = db.begin().await?;
    let dialect = tx.dialect();
    let text = dialect.pick(PRUNE_SQLITE, PRUNE_MYSQL).replace("{now}", dialect.now());
    let age = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    let removed = db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(text))
            .bind(age)
            .bind(i64::from(limit))
            .execute(connection)
            .await?
            .rows_affected()
    });
    tx.commit().await?;
    Ok(removed)
}
