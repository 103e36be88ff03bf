//! The table of findings that are not good.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Timestamp;
use db::{Db, Dialect, Error};
use sqlx::AssertSqlSafe;

use super::millis;

const READ: &str = "SELECT part, finding, since FROM fleet_findings ORDER BY part, finding";

/// The part and the text of a finding, without its numbers.
pub(crate) type FindingKey = (String, String);

db::row! {
    struct FindingRow {
        part: String,
        finding: String,
        since: i64,
    }
}

/// Reads since when each finding is known.
pub(crate) async fn read(db: &Db) -> Result<BTreeMap<FindingKey, Timestamp>, Error> {
    let read = async {
        let mut connection = db.connection().await?;
        let rows: Vec<FindingRow> = db::on!(connection, raw => sqlx::query_as(READ).fetch_all(raw).await?);
        Ok::<_, Error>(rows)
    };
    let rows = db.bounded(read).await?;
    Ok(rows.into_iter().map(|row| ((row.part, row.finding), Timestamp::from_millis(row.since))).collect())
}

/// Records that these findings exist now. Removes findings that were not recorded for `absent`: one failed read must not restart
/// their time.
pub(crate) async fn record(db: &Db, findings: &[FindingKey], absent: Duration) -> Result<(), Error> {
    let now = db.dialect().now();
    let insert = match db.dialect() {
        Dialect::Sqlite => "INSERT OR IGNORE INTO",
        Dialect::MySql => "INSERT IGNORE INTO",
    };
    let insert =
        format!("{insert} fleet_findings (part, finding, since, seen_at) VALUES (?, ?, {now}, {now})");
    let renew = format!("UPDATE fleet_findings SET seen_at = {now} WHERE part = ? AND finding = ?");
    let remove = format!("DELETE FROM fleet_findings WHERE seen_at < {now} - ?");
    let record = async {
        let mut tx = db.begin().await?;
        db::on!(tx, connection => {
            for (part, finding) in findings {
                sqlx::query(AssertSqlSafe(insert.clone()))
                    .bind(part)
                    .bind(finding)
                    .execute(&mut *connection)
                    .await?;
                sqlx::query(AssertSqlSafe(renew.clone()))
                    .bind(part)
                    .bind(finding)
                    .execute(&mut *connection)
                    .await?;
            }
            sqlx::query(AssertSqlSafe(remove)).bind(millis(absent)).execute(connection).await?;
        });
        tx.commit().await
    };
    db.bounded(record).await
}
