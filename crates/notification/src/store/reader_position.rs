//! The table of positions up to which the event stream is taken in, one row per reader.

use db::{Db, Error, Tx};
use sqlx::AssertSqlSafe;

/// Adds a reader with its start position, unless it exists.
pub(crate) async fn add_reader(db: &Db, reader: &str, position: u64) -> Result<(), Error> {
    let insert = db.dialect().pick(
        "INSERT OR IGNORE INTO notification_intake (reader, position)",
        "INSERT IGNORE INTO notification_intake (reader, position)",
    );
    db.bounded(async {
        let (tx, _) = db.begin_with_insert(insert, [[reader.into(), stored(position).into()]]).await?;
        tx.commit().await
    })
    .await
}

/// Locks a reader until the transaction ends, and returns its position; none if it does not exist.
pub(crate) async fn lock_reader(tx: &mut Tx, reader: &str) -> Result<Option<u64>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT position FROM notification_intake WHERE reader = ? {}",
        tx.dialect().pick("", "FOR UPDATE")
    ));
    let found: Option<(i64,)> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(reader).fetch_optional(connection).await?
    });
    Ok(found.map(|(position,)| position.try_into().unwrap_or_default()))
}

/// Moves a reader to a position at the commit of the transaction. The caller must have locked it.
pub(crate) fn move_reader(tx: &mut Tx, reader: &str, position: u64) {
    let row = [reader.into(), stored(position).into()];
    tx.insert_at_commit("REPLACE INTO notification_intake (reader, position)", [row]);
}

fn stored(position: u64) -> i64 {
    position.try_into().unwrap_or(i64::MAX)
}
