//! Whether a server that answers like MySQL does what our queues and locks rely on.

use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Connection, Executor};

use crate::connect::Pools;
use crate::error::bounded;
use crate::{Db, Error};

/// How long the probe of `SKIP LOCKED` may take, the wait of a server that does not skip included.
const PROBE: Duration = Duration::from_secs(10);
/// A server that does not skip a locked row waits for it this long.
const WAIT: &str = "SET SESSION innodb_lock_wait_timeout = 1";
const TABLES: &str = "SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = 'deployment_settings'";
const LOCK: &str = "SELECT name FROM deployment_settings WHERE name = 'deployment_id' FOR UPDATE";
const SKIP: &str = "SELECT name FROM deployment_settings WHERE name = 'deployment_id' FOR UPDATE SKIP LOCKED";

impl Db {
    /// Fails with [`Error::Unfit`] on a server that only seems to be MySQL or MariaDB. `SKIP LOCKED` is tried on the row of the
    /// deployment, so only where the tables are there.
    pub async fn require_fit(&self) -> Result<(), Error> {
        let Pools::MySql(server) = &self.pools else { return Ok(()) };
        let options = server.health.options();
        bounded(PROBE, probe(options)).await
    }
}

async fn probe(options: &MySqlConnectOptions) -> Result<(), Error> {
    let mut first = options.connect().await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut first).await?;
    // A server may be told to show another version. Only TiDB has the function.
    let tidb: Option<String> = sqlx::query_scalar("SELECT tidb_version()").fetch_one(&mut first).await.ok();
    if version.contains("TiDB") || tidb.is_some() {
        return Err(Error::Unfit(format!(
            "it is TiDB ({version}), which ignores SKIP LOCKED and so gives the same work to several processes"
        )));
    }
    let tables: i64 = sqlx::query_scalar(TABLES).fetch_one(&mut first).await?;
    if tables > 0 {
        let mut second = options.connect().await?;
        skips_locked(&mut first, &mut second, &version).await?;
        // The server notices by itself, too.
        let _ = second.close().await;
    }
    let _ = first.close().await;
    Ok(())
}

/// Locks a row in one session and looks whether another one skips it.
async fn skips_locked(
    first: &mut MySqlConnection,
    second: &mut MySqlConnection,
    version: &str,
) -> Result<(), Error> {
    second.execute(WAIT).await?;
    let mut holder = first.begin().await?;
    let held: Option<String> = sqlx::query_scalar(LOCK).fetch_optional(&mut *holder).await?;
    let mut other = second.begin().await?;
    let met = sqlx::query_scalar::<_, String>(SKIP).fetch_optional(&mut *other).await;
    let met = match met.map_err(Error::from) {
        // The row is not there yet, or it was skipped.
        Ok(met) if held.is_none() || met.is_none() => None,
        Ok(_) => Some("with SKIP LOCKED it hands out a row that another session has locked".to_owned()),
        Err(Error::Busy(_)) => {
            Some("with SKIP LOCKED it waits for a row that another session has locked".to_owned())
        }
        Err(Error::Statement(error)) => Some(format!("it refuses SKIP LOCKED: {error}")),
        Err(error) => return Err(error),
    };
    other.rollback().await?;
    holder.rollback().await?;
    match met {
        None => Ok(()),
        Some(what) => Err(Error::Unfit(format!("{what} ({version})"))),
    }
}
