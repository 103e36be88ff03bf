//! Migrations on SQLite. A migration and its record are one transaction.

use sqlx::{Executor, Row, SqliteConnection, SqlitePool};

use super::{Migrations, Record, Records};
use crate::{Db, Error};

const CREATE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    component TEXT NOT NULL,
    version INTEGER NOT NULL,
    name TEXT NOT NULL,
    checksum BLOB NOT NULL,
    applied_at INTEGER NOT NULL,
    PRIMARY KEY (component, version)
) STRICT, WITHOUT ROWID";
const EXISTS: &str = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'";
const READ: &str = "SELECT component, version, name, checksum FROM schema_migrations";
const RECORD: &str = "INSERT INTO schema_migrations (component, version, name, checksum, applied_at)
    VALUES (?, ?, ?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER))";

pub(super) async fn records(pool: &SqlitePool) -> Result<Records, Error> {
    let mut connection = pool.acquire().await?;
    let tables: i64 = sqlx::query_scalar(EXISTS).fetch_one(&mut *connection).await?;
    if tables == 0 { Ok(Records::new()) } else { read(&mut connection).await }
}

async fn read(connection: &mut SqliteConnection) -> Result<Records, Error> {
    let mut records = Records::new();
    for row in sqlx::query(READ).fetch_all(connection).await? {
        let record = Record { name: row.try_get(2)?, checksum: row.try_get(3)?, finished: true };
        records.insert((row.try_get(0)?, row.try_get(1)?), record);
    }
    Ok(records)
}

pub(super) async fn migrate(db: &Db, writer: &SqlitePool, sets: &[Migrations]) -> Result<Vec<String>, Error> {
    writer.execute(CREATE).await?;
    let mut done = Vec::new();
    loop {
        // The records are read under the write lock, because another task may have run the migration in the meantime.
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let records = read(&mut tx).await?;
        let Some(step) = db.pending(sets, &records)?.into_iter().next() else { return Ok(done) };
        tx.execute(step.sql)
            .await
            .map_err(|error| step.failed("the statement failed", Some(error.into())))?;
        sqlx::query(RECORD)
            .bind(step.component)
            .bind(step.version)
            .bind(step.name)
            .bind(step.checksum())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        tracing::info!(migration = step.title(), "applied the migration");
        done.push(step.title());
    }
}
