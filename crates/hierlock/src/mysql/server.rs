//! Lock waits, as the server's own tables show them.

use std::time::Duration;

use base::Timestamp;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{Connection, Row as _};

use super::{SHORT_TIMEOUT, connect};
use crate::error::bounded;
use crate::{Error, Level, Row};

/// A session that waits for a lock of this crate, as the server's own tables show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// The connection id of the waiting session.
    pub waiter: u64,
    /// The connection id of the session that blocks it.
    pub holder: u64,
    pub row: Row,
    /// When the wait began, by the server's clock, in whole seconds. None if the server's table of transactions is older than the wait.
    pub since: Option<Timestamp>,
    /// How long it has been waiting.
    pub waited: Duration,
}

const MARIADB: &str = "
    SELECT w.trx_mysql_thread_id AS waiter, h.trx_mysql_thread_id AS holder, l.lock_data,
        CAST(TIMESTAMPDIFF(MICROSECOND, w.trx_wait_started, NOW(6)) AS SIGNED) AS micros,
        CAST(UNIX_TIMESTAMP(w.trx_wait_started) AS SIGNED) AS since
    FROM information_schema.INNODB_LOCK_WAITS x
    JOIN information_schema.INNODB_TRX w ON w.trx_id = x.requesting_trx_id
    JOIN information_schema.INNODB_TRX h ON h.trx_id = x.blocking_trx_id
    JOIN information_schema.INNODB_LOCKS l ON l.lock_id = x.requested_lock_id
    WHERE l.lock_table = CONCAT('`', DATABASE(), '`.`hier_lock_buckets`')";

const MYSQL: &str = "
    SELECT w.PROCESSLIST_ID AS waiter, h.PROCESSLIST_ID AS holder, l.LOCK_DATA,
        CAST(TIMESTAMPDIFF(MICROSECOND, t.trx_wait_started, NOW(6)) AS SIGNED) AS micros,
        CAST(UNIX_TIMESTAMP(t.trx_wait_started) AS SIGNED) AS since
    FROM performance_schema.data_lock_waits x
    JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = x.REQUESTING_ENGINE_LOCK_ID
    JOIN performance_schema.threads w ON w.THREAD_ID = x.REQUESTING_THREAD_ID
    JOIN performance_schema.threads h ON h.THREAD_ID = x.BLOCKING_THREAD_ID
    LEFT JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = w.PROCESSLIST_ID
    WHERE l.OBJECT_SCHEMA = DATABASE() AND l.OBJECT_NAME = 'hier_lock_buckets'";

/// MariaDB refreshes its tables only if they were not read for a tenth of a second.
const MARIADB_REFRESH: Duration = Duration::from_millis(110);

/// Returns the current lock waits in a database, the longest first.
///
/// The database user needs the privilege PROCESS, and on MySQL also SELECT on `performance_schema`. Fails with
/// [`Error::MissingPrivilege`] otherwise.
pub async fn lock_waits(database: MySqlConnectOptions) -> Result<Vec<LockWait>, Error> {
    let mut connection = connect(database).await?;
    let waits = bounded(SHORT_TIMEOUT, read_lock_waits(&mut connection)).await?;
    connection.close().await?;
    Ok(waits)
}

pub(super) async fn read_lock_waits(connection: &mut MySqlConnection) -> Result<Vec<LockWait>, sqlx::Error> {
    let text = if is_mariadb(connection).await? {
        // Without the pause, a caller that polls would always see the same rows.
        tokio::time::sleep(MARIADB_REFRESH).await;
        MARIADB
    } else {
        MYSQL
    };
    let mut waits = Vec::new();
    for found in sqlx::query(text).fetch_all(connection).await? {
        let data: Option<String> = found.try_get(2)?;
        let micros: Option<i64> = found.try_get(3)?;
        let since: Option<i64> = found.try_get(4)?;
        // No lock data means that the wait ended while the server read its tables.
        let Some(row) = data.as_deref().and_then(parse_row) else { continue };
        let since = since.map(|seconds| Timestamp::from_millis(seconds.saturating_mul(1_000)));
        let waited = Duration::from_micros(micros.and_then(|micros| micros.try_into().ok()).unwrap_or(0));
        waits.push(LockWait { waiter: found.try_get(0)?, holder: found.try_get(1)?, row, since, waited });
    }
    waits.sort_by_key(|wait| (std::cmp::Reverse(wait.waited), wait.waiter));
    Ok(waits)
}

/// Parses a primary key as the servers write it: `2, 4711`.
fn parse_row(data: &str) -> Option<Row> {
    let (level, bucket) = data.split_once(',')?;
    let level: usize = level.trim().parse().ok()?;
    Some(Row { level: *Level::ALL.get(level)?, bucket: bucket.trim().parse().ok()? })
}

pub(super) async fn is_mariadb(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(connection).await?;
    Ok(version.contains("MariaDB"))
}
