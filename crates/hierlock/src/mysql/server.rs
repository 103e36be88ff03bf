//! What the server itself says about waiting.

use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{Connection, Row as _};

use super::{BRIEF, connect};
use crate::error::bounded;
use crate::{Error, Level, Row};

/// A session that waits for a lock of ours, as the server's own tables have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who waits, and who is in the way, by the server's numbers of their sessions.
    pub waiter: u64,
    pub holder: u64,
    pub row: Row,
    pub since: Duration,
}

const MARIADB: &str = "
    SELECT w.trx_mysql_thread_id AS waiter, h.trx_mysql_thread_id AS holder, l.lock_data,
        CAST(TIMESTAMPDIFF(MICROSECOND, w.trx_wait_started, NOW(6)) AS SIGNED) AS micros
    FROM information_schema.INNODB_LOCK_WAITS x
    JOIN information_schema.INNODB_TRX w ON w.trx_id = x.requesting_trx_id
    JOIN information_schema.INNODB_TRX h ON h.trx_id = x.blocking_trx_id
    JOIN information_schema.INNODB_LOCKS l ON l.lock_id = x.requested_lock_id
    WHERE l.lock_table = CONCAT('`', DATABASE(), '`.`hier_lock_buckets`')";

const MYSQL: &str = "
    SELECT w.PROCESSLIST_ID AS waiter, h.PROCESSLIST_ID AS holder, l.LOCK_DATA,
        CAST(TIMESTAMPDIFF(MICROSECOND, t.trx_wait_started, NOW(6)) AS SIGNED) AS micros
    FROM performance_schema.data_lock_waits x
    JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = x.REQUESTING_ENGINE_LOCK_ID
    JOIN performance_schema.threads w ON w.THREAD_ID = x.REQUESTING_THREAD_ID
    JOIN performance_schema.threads h ON h.THREAD_ID = x.BLOCKING_THREAD_ID
    LEFT JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = w.PROCESSLIST_ID
    WHERE l.OBJECT_SCHEMA = DATABASE() AND l.OBJECT_NAME = 'hier_lock_buckets'";

/// MariaDB renews its tables only if nobody has read them for a tenth of a second.
const MARIADB_RENEWS: Duration = Duration::from_millis(110);

/// Who waits for whom in a database at this moment, as its server sees it, the longest wait first.
///
/// The user needs the privilege PROCESS.
pub async fn waits(database: MySqlConnectOptions) -> Result<Vec<Wait>, Error> {
    let mut connection = connect(database).await?;
    let waits = bounded(BRIEF, waits_on(&mut connection)).await?;
    connection.close().await?;
    Ok(waits)
}

pub(super) async fn waits_on(connection: &mut MySqlConnection) -> Result<Vec<Wait>, sqlx::Error> {
    let text = if is_mariadb(connection).await? {
        // Whoever looks again and again would see the same again and again.
        tokio::time::sleep(MARIADB_RENEWS).await;
        MARIADB
    } else {
        MYSQL
    };
    let mut waits = Vec::new();
    for found in sqlx::query(text).fetch_all(connection).await? {
        let data: Option<String> = found.try_get(2)?;
        let micros: Option<i64> = found.try_get(3)?;
        // Without it the wait has ended while the server looked.
        let Some(row) = data.as_deref().and_then(row) else { continue };
        let since = Duration::from_micros(micros.and_then(|micros| micros.try_into().ok()).unwrap_or(0));
        waits.push(Wait { waiter: found.try_get(0)?, holder: found.try_get(1)?, row, since });
    }
    waits.sort_by_key(|wait| (std::cmp::Reverse(wait.since), wait.waiter));
    Ok(waits)
}

/// The primary key as the servers write it: `2, 4711`.
fn row(data: &str) -> Option<Row> {
    let (level, bucket) = data.split_once(',')?;
    let level: usize = level.trim().parse().ok()?;
    Some(Row { level: *Level::ALL.get(level)?, bucket: bucket.trim().parse().ok()? })
}

pub(super) async fn is_mariadb(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(connection).await?;
    Ok(version.contains("MariaDB"))
}
