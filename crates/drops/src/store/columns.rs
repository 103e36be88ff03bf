//! What the statements of all tables share.

use base::Timestamp;
use base::id::Uuid;
use db::{Dialect, Error, Tx};
use sqlx::AssertSqlSafe;

/// Returns an id as its column holds it.
pub(crate) fn bytes(id: &Uuid) -> &[u8] {
    &id.as_bytes()[..]
}

/// Reads the column of an id.
pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

/// Returns `text` with the lock that MySQL needs. SQLite has one writer.
pub(crate) fn locking(dialect: Dialect, text: &str, lock: &'static str) -> String {
    format!("{text}{}", dialect.pick("", lock))
}

/// Returns the store's time. A statement of its own: the one that locks has the time at which it began to wait.
pub(crate) async fn now(tx: &mut Tx) -> Result<Timestamp, Error> {
    let text = AssertSqlSafe(format!("SELECT {}", tx.dialect().now()));
    let millis: i64 = db::on!(tx, connection => sqlx::query_scalar(text).fetch_one(connection).await?);
    Ok(Timestamp::from_millis(millis))
}
