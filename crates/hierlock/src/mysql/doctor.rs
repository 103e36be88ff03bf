//! Whether the database is fit for locking.

use base::finding::Finding;
use sqlx::Connection;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};

use super::schema::recorded;
use super::{BRIEF, connect};
use crate::error::bounded;
use crate::{Error, Options, Space};

const PROVISION: &str = "run `playhouse locks provision`";
/// Beside those that hold locks: for killing, and for looking.
const MORE: u32 = 2;

/// Looks at the buckets and at the server's settings. Changes nothing.
pub async fn examine(database: MySqlConnectOptions, options: &Options) -> Vec<Finding> {
    match bounded(BRIEF, look(database, options)).await {
        Ok(findings) => findings,
        Err(Error::NoTables(_)) => {
            vec![Finding::failure("the tables are missing", "run `playhouse migrate`")]
        }
        Err(Error::NotProvisioned) => vec![Finding::failure("no buckets have been made yet", PROVISION)],
        Err(error) => vec![Finding::failure(base::error::chain(&error), "see what is said of the database")],
    }
}

async fn look(database: MySqlConnectOptions, options: &Options) -> Result<Vec<Finding>, Error> {
    let mut connection = connect(database).await?;
    let (space, complete) = recorded(&mut connection).await?.ok_or(Error::NotProvisioned)?;
    let ours = Space::new(options.buckets);
    let agree = Finding::when(space == ours, format!("{space}, as this process is set"), || {
        let what = format!("the database has {space}, this process is set to {ours}");
        Finding::failure(what, "set locks.buckets to what the database has")
    });
    let complete = Finding::when(complete, "all buckets were made", || {
        Finding::failure("making the buckets was interrupted", PROVISION)
    });
    let memory = judge_memory(&space, number(&mut connection, "innodb_buffer_pool_size").await?);
    let wanted = u64::from(options.max_connections + MORE);
    let connections = judge_connections(wanted, number(&mut connection, "max_connections").await?);
    connection.close().await?;
    Ok(vec![agree, complete, memory, connections])
}

/// Rows are looked up at random, so the whole table is in use.
fn judge_memory(space: &Space, pool: u64) -> Finding {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (rows, pool) = (mib(space.bytes()), mib(pool));
    let what = format!("the buckets take up about {rows} MiB, the server's buffer pool has {pool} MiB");
    Finding::when(rows < pool, what.clone(), || {
        let advice = "raise innodb_buffer_pool_size: a lock whose row is not in memory waits for the disk";
        Finding::warning(what, advice)
    })
}

fn judge_connections(ours: u64, theirs: u64) -> Finding {
    let what = format!("allows {theirs} connections, a process uses up to {ours} more for locks");
    Finding::when(ours < theirs, what.clone(), || {
        Finding::warning(what, "raise max_connections of the server, or lower locks.max_connections")
    })
}

/// A setting of the server.
async fn number(connection: &mut MySqlConnection, name: &'static str) -> Result<u64, sqlx::Error> {
    const SHOW: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name = ?";
    let found: (String, String) = sqlx::query_as(SHOW).bind(name).fetch_one(connection).await?;
    Ok(found.1.parse().unwrap_or(0))
}
