//! Checks that a server that answers like MySQL supports `SKIP LOCKED`, on which the queues and locks rely.

use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Connection, Executor};

use crate::connect::Pools;
use crate::error::bounded;
use crate::{Db, Error};

/// How long the probe of `SKIP LOCKED` may take, including the lock wait on a server that does not skip.
const PROBE: Duration = Duration::from_secs(10);
/// Limits the wait for the locked row on a server that does not skip it.
const WAIT: &str = "SET SESSION innodb_lock_wait_timeout = 1";
const TABLES: &str = "SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = 'deployment_settings'";
const LOCK: &str = "SELECT name FROM deployment_settings WHERE name = 'deployment_id' FOR UPDATE";
const SKIP: &str = "SELECT name FROM deployment_settings WHERE name = 'deployment_id' FOR UPDATE SKIP LOCKED";

impl Db {
    /// Fails with [`Error::UnsupportedServer`] on a server that is not really MySQL or MariaDB. Probes `SKIP LOCKED` on the row of the
    /// deployment id, so it skips the probe before the first migration.
    pub async fn require_supported_server(&self) -> Result<(), Error> {
        let Pools::MySql(server) = &self.pools else { return Ok(()) };
        let options = server.health.options();
        bounded(PROBE, probe(options)).await
    }
}

async fn probe(options: &MySqlConnectOptions) -> Result<(), Error> {
    let mut first = options.connect().await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut first).await?;
    // A server can be configured to report another version, but only TiDB has this function.
    let tidb: Option<String> = sqlx::query_scalar("SELECT tidb_version()").fetch_one(&mut first).await.ok();
    if version.contains("TiDB") || tidb.is_some() {
        return Err(Error::UnsupportedServer(format!(
            "the server is TiDB ({version}), which ignores SKIP LOCKED and would give the same work to several processes"
        )));
    }
    let tables: i64 = sqlx::query_scalar(TABLES).fetch_one(&mut first).await?;
    if tables > 0 {
        let mut second = options.connect().await?;
        probe_skip_locked(&mut first, &mut second, &version).await?;
        // Best effort: the server also notices a closed socket.
        let _ = second.close().await;
    }
    let _ = first.close().await;
    Ok(())
}

/// Locks a row in one session and checks that another session skips it.
async fn probe_skip_locked(
    first: &mut MySqlConnection,
    second: &mut MySqlConnection,
    version: &str,
) -> Result<(), Error> {
    second.execute(WAIT).await?;
    let mut holder = first.begin().await?;
    let held: Option<String> = sqlx::query_scalar(LOCK).fetch_optional(&mut *holder).await?;
    let mut other = second.begin().await?;
    let row = sqlx::query_scalar::<_, String>(SKIP).fetch_optional(&mut *other).await;
    let problem = match row.map_err(Error::from) {
        // The row does not exist yet, or it was skipped.
        Ok(row) if held.is_none() || row.is_none() => None,
        Ok(_) => Some("with SKIP LOCKED the server returns a row that another session has locked".to_owned()),
        Err(Error::Busy(_)) => {
            Some("with SKIP LOCKED the server waits for a row that another session has locked".to_owned())
        }
        Err(Error::Statement(error)) => Some(format!("the server rejects SKIP LOCKED: {error}")),
        Err(error) => return Err(error),
    };
    other.rollback().await?;
    holder.rollback().await?;
    match problem {
        None => Ok(()),
        Some(problem) => Err(Error::UnsupportedServer(format!("{problem} ({version})"))),
    }
}
