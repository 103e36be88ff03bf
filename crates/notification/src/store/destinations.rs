//! The table of webhook destinations that are disabled.

use std::collections::HashMap;

use base::Timestamp;
use db::{Db, Error};
use sqlx::AssertSqlSafe;

/// Returns the destinations that are disabled, each with the time and the cause.
pub(crate) async fn disabled(db: &Db) -> Result<HashMap<String, (Timestamp, String)>, Error> {
    const READ: &str = "SELECT name, disabled_at, cause FROM notification_destination";
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<(String, i64, String)> =
            db::on!(connection, raw => sqlx::query_as(READ).fetch_all(raw).await?);
        let entry = |(name, at, cause)| (name, (Timestamp::from_millis(at), cause));
        Ok(rows.into_iter().map(entry).collect())
    };
    db.bounded(reading).await
}

/// Disables a destination from now on, unless it is disabled already. Returns whether it was enabled.
pub(crate) async fn disable(db: &Db, name: &str, cause: &str) -> Result<bool, Error> {
    let ignore = db.dialect().pick("INSERT OR IGNORE", "INSERT IGNORE");
    let text = AssertSqlSafe(format!(
        "{ignore} INTO notification_destination (name, disabled_at, cause) VALUES (?, {}, ?)",
        db.dialect().now()
    ));
    let disabling = async {
        let mut tx = db.begin().await?;
        let disabled = db::on!(tx, connection => {
            sqlx::query(text).bind(name).bind(cause).execute(connection).await?.rows_affected()
        });
        tx.commit().await?;
        Ok(disabled > 0)
    };
    db.bounded(disabling).await
}

/// Enables a destination. Returns whether it was disabled.
pub(crate) async fn enable(db: &Db, name: &str) -> Result<bool, Error> {
    const ENABLE: &str = "DELETE FROM notification_destination WHERE name = ?";
    let enabling = async {
        let mut tx = db.begin().await?;
        let enabled = db::on!(tx, connection => {
            sqlx::query(ENABLE).bind(name).execute(connection).await?.rows_affected()
        });
        tx.commit().await?;
        Ok(enabled > 0)
    };
    db.bounded(enabling).await
}
