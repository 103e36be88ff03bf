//! The table of processes. The other tables have their own modules.

pub(crate) mod findings;
pub(crate) mod samples;

use std::time::Duration;

use base::Timestamp;
use base::id::{ProcessId, Uuid};
use db::{Db, Error};
use sqlx::AssertSqlSafe;

use crate::model::ProcessView;

const READ: &str = "SELECT process_id, version, roles, admin, heartbeat, started_at, seen_at \
    FROM fleet_processes ORDER BY started_at, process_id";
const COUNT: &str = "SELECT COUNT(*) FROM fleet_processes WHERE process_id = ?";
const REMOVE: &str = "DELETE FROM fleet_processes WHERE process_id = ?";
const REMOVE_OTHERS: &str = "DELETE FROM fleet_processes WHERE process_id <> ?";

db::row! {
    struct ProcessRow {
        process_id: Vec<u8>,
        version: String,
        roles: String,
        admin: String,
        heartbeat: i64,
        started_at: i64,
        seen_at: i64,
    }
}

/// The data that a process inserts about itself.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: ProcessId,
    pub(crate) version: &'static str,
    pub(crate) roles: String,
    pub(crate) admin: String,
    pub(crate) heartbeat: Duration,
}

/// Reads all processes that have a row, and the time of the database.
pub(crate) async fn read(db: &Db) -> Result<(Vec<ProcessView>, Timestamp), Error> {
    let read = async {
        let mut connection = db.connection().await?;
        let rows: Vec<ProcessRow> = db::on!(connection, raw => sqlx::query_as(READ).fetch_all(raw).await?);
        Ok::<_, Error>(rows)
    };
    let rows = db.bounded(read).await?;
    Ok((rows.into_iter().map(from_row).collect(), db.now().await?))
}

/// Renews the row of a process that started `age` ago. Inserts it if there is none.
pub(crate) async fn renew(db: &Db, row: &Row, age: Duration) -> Result<(), Error> {
    let now = db.dialect().now();
    let renew = format!("UPDATE fleet_processes SET seen_at = {now} WHERE process_id = ?");
    let insert = format!(
        "INSERT INTO fleet_processes (process_id, version, roles, admin, heartbeat, started_at, seen_at) \
         VALUES (?, ?, ?, ?, ?, {now} - ?, {now})"
    );
    let id = &row.id.as_uuid().as_bytes()[..];
    let transaction = async {
        let mut tx = db.begin().await?;
        // Not by the affected rows of the update: MySQL reports 0 for a second renewal within a millisecond.
        let count: i64 =
            db::on!(tx, connection => sqlx::query_scalar(COUNT).bind(id).fetch_one(connection).await?);
        if count > 0 {
            db::on!(tx, connection => {
                sqlx::query(AssertSqlSafe(renew)).bind(id).execute(connection).await?;
            });
        } else {
            db::on!(tx, connection => {
                sqlx::query(AssertSqlSafe(insert))
                    .bind(id)
                    .bind(row.version)
                    .bind(&row.roles)
                    .bind(&row.admin)
                    .bind(millis(row.heartbeat))
                    .bind(millis(age))
                    .execute(connection)
                    .await?;
            });
        }
        tx.commit().await
    };
    db.bounded(transaction).await
}

/// Removes the row of a process that stops.
pub(crate) async fn remove(db: &Db, id: ProcessId) -> Result<(), Error> {
    execute(db, REMOVE.to_owned(), id).await
}

/// Removes the rows of all other processes. An embedded store serves one process, so the others are gone.
pub(crate) async fn remove_others(db: &Db, id: ProcessId) -> Result<(), Error> {
    execute(db, REMOVE_OTHERS.to_owned(), id).await
}

/// Removes the rows of other processes that have not sent a heartbeat for `silent`.
pub(crate) async fn remove_silent(db: &Db, id: ProcessId, silent: Duration) -> Result<(), Error> {
    let oldest = format!("{} - {}", db.dialect().now(), millis(silent));
    execute(db, format!("{REMOVE_OTHERS} AND seen_at < {oldest}"), id).await
}

async fn execute(db: &Db, text: String, id: ProcessId) -> Result<(), Error> {
    let transaction = async {
        let mut tx = db.begin().await?;
        db::on!(tx, connection => {
            sqlx::query(AssertSqlSafe(text)).bind(&id.as_uuid().as_bytes()[..]).execute(connection).await?;
        });
        tx.commit().await
    };
    db.bounded(transaction).await
}

fn from_row(row: ProcessRow) -> ProcessView {
    ProcessView {
        id: ProcessId::from_uuid(Uuid::from_slice(&row.process_id).unwrap_or_default()),
        version: row.version,
        roles: row.roles.split(',').map(str::to_owned).collect(),
        admin: row.admin,
        heartbeat: Duration::from_millis(row.heartbeat.try_into().unwrap_or_default()),
        started_at: Timestamp::from_millis(row.started_at),
        seen_at: Timestamp::from_millis(row.seen_at),
    }
}

fn millis(duration: Duration) -> i64 {
    duration.as_millis().try_into().unwrap_or(i64::MAX)
}
