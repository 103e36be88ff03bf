//! Helpers that the statements of all tables share.

use base::Timestamp;
use base::id::Uuid;
use db::{Dialect, Error, Tx};
use sqlx::AssertSqlSafe;

/// Returns an id in the format of its column.
pub(crate) fn bytes(id: &Uuid) -> &[u8] {
    &id.as_bytes()[..]
}

/// Reads the column of an id.
pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

/// Appends the lock clause that MySQL needs. SQLite has a single writer and needs none.
pub(crate) fn locking(dialect: Dialect, text: &str, lock: &'static str) -> String {
    format!("{text}{}", dialect.pick("", lock))
}

/// Returns the store's time. It needs its own statement: in the locking one, the clock shows when it began to wait for the lock.
pub(crate) async fn now(tx: &mut Tx) -> Result<Timestamp, Error> {
    let text = AssertSqlSafe(format!("SELECT {}", tx.dialect().now()));
    let millis: i64 = db::on!(tx, connection => sqlx::query_scalar(text).fetch_one(connection).await?);
    Ok(Timestamp::from_millis(millis))
}
