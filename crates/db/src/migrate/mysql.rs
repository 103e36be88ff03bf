//! Migrations on MySQL and MariaDB. A DDL statement commits implicitly, so a record before it marks the migration as begun and an
//! update after it as finished.

use hierlock::ServerError;
use sqlx::mysql::MySqlConnection;
use sqlx::{Connection, Executor, MySqlPool, Row};

use super::{Migrations, Record, Records, Step};
use crate::{Db, Error};

/// How long to wait for another process that is migrating.
const LOCK_SECONDS: u32 = 60;

const CREATE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    component VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version INT UNSIGNED NOT NULL,
    name VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    checksum BINARY(32) NOT NULL,
    begun_at BIGINT NOT NULL,
    applied_at BIGINT NULL,
    PRIMARY KEY (component, version)
) ENGINE=InnoDB";
const EXISTS: &str = "SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = 'schema_migrations'";
const READ: &str = "SELECT component, version, name, checksum, applied_at FROM schema_migrations";
const BEGIN: &str = "REPLACE INTO schema_migrations (component, version, name, checksum, begun_at)
    VALUES (?, ?, ?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED))";
const FINISH: &str = "UPDATE schema_migrations SET applied_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)
    WHERE component = ? AND version = ?";
const DELETE_UNFINISHED: &str =
    "DELETE FROM schema_migrations WHERE component = ? AND version = ? AND applied_at IS NULL";
// Lock names are global to the server and limited to 64 characters. MySQL 9 has no MD5.
const LOCK: &str = "SELECT GET_LOCK(CONCAT('playhouse_migrate:', LEFT(SHA2(DATABASE(), 256), 40)), ?)";
const UNLOCK: &str = "DO RELEASE_LOCK(CONCAT('playhouse_migrate:', LEFT(SHA2(DATABASE(), 256), 40)))";

pub(super) async fn records(pool: &MySqlPool) -> Result<Records, Error> {
    read(&mut *pool.acquire().await?).await
}

async fn read(connection: &mut MySqlConnection) -> Result<Records, Error> {
    let tables: i64 = sqlx::query_scalar(EXISTS).fetch_one(&mut *connection).await?;
    if tables == 0 {
        return Ok(Records::new());
    }
    let mut records = Records::new();
    for row in sqlx::query(READ).fetch_all(connection).await? {
        let finished: Option<i64> = row.try_get(4)?;
        let record =
            Record { name: row.try_get(2)?, checksum: row.try_get(3)?, finished: finished.is_some() };
        records.insert((row.try_get(0)?, row.try_get(1)?), record);
    }
    Ok(records)
}

pub(super) async fn migrate(db: &Db, pool: &MySqlPool, sets: &[Migrations]) -> Result<Vec<String>, Error> {
    // Detached from the pool: however this connection is closed, that releases the lock.
    let mut connection = pool.acquire().await?.detach();
    let locked: Option<i64> = sqlx::query_scalar(LOCK).bind(LOCK_SECONDS).fetch_one(&mut connection).await?;
    if locked != Some(1) {
        return Err(Error::MigrationLock(LOCK_SECONDS));
    }
    let done = run(db, &mut connection, sets).await;
    // Best effort, because the connection itself may have failed.
    let _ = connection.execute(UNLOCK).await;
    let _ = connection.close().await;
    done
}

async fn run(db: &Db, connection: &mut MySqlConnection, sets: &[Migrations]) -> Result<Vec<String>, Error> {
    connection.execute(CREATE).await?;
    let mut done = Vec::new();
    for step in db.pending(sets, &read(connection).await?)? {
        apply(connection, &step).await?;
        tracing::info!(migration = step.title(), resumed = step.was_begun, "applied the migration");
        done.push(step.title());
    }
    Ok(done)
}

async fn apply(connection: &mut MySqlConnection, step: &Step) -> Result<(), Error> {
    sqlx::query(BEGIN)
        .bind(step.component)
        .bind(step.version)
        .bind(step.name)
        .bind(step.checksum())
        .execute(&mut *connection)
        .await?;
    if let Err(error) = connection.execute(step.sql).await.map_err(Error::from) {
        let was_applied = error.server_error() == Some(ServerError::AlreadyApplied);
        if !(step.was_begun && was_applied) {
            // The server refused the statement, so this attempt did not begin it. Keeping the record would make the next attempt mistake
            // a conflicting object for its own.
            if !step.was_begun && error.server_error().is_some() {
                sqlx::query(DELETE_UNFINISHED)
                    .bind(step.component)
                    .bind(step.version)
                    .execute(connection)
                    .await?;
            }
            return Err(step.failed("the statement failed", Some(error)));
        }
    }
    sqlx::query(FINISH).bind(step.component).bind(step.version).execute(connection).await?;
    Ok(())
}
