//! Checks that the database is ready for locking.

use base::finding::Finding;
use sqlx::Connection;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};

use super::schema::recorded;
use super::{SHORT_TIMEOUT, connect};
use crate::error::bounded;
use crate::{BucketSpace, Error, Options};

const PROVISION: &str = "run `playhouse locks provision`";
/// Connections outside the session pool: one kills sessions, the other draws tokens and reads lock waits.
const ADMIN_CONNECTIONS: u32 = 2;

/// Examines the buckets and the server's settings. Changes nothing.
pub async fn examine(database: MySqlConnectOptions, options: &Options) -> Vec<Finding> {
    match bounded(SHORT_TIMEOUT, look(database, options)).await {
        Ok(findings) => findings,
        Err(Error::MissingTables(_)) => {
            vec![Finding::failure("the tables are missing", "run `playhouse migrate`")]
        }
        Err(Error::NotProvisioned) => vec![Finding::failure("no buckets have been created yet", PROVISION)],
        Err(error) => {
            vec![Finding::failure(base::error::chain(&error), "see the findings about the database")]
        }
    }
}

async fn look(database: MySqlConnectOptions, options: &Options) -> Result<Vec<Finding>, Error> {
    let mut connection = connect(database).await?;
    let (space, complete) = recorded(&mut connection).await?.ok_or(Error::NotProvisioned)?;
    let ours = BucketSpace::new(options.buckets);
    let agree = Finding::check(space == ours, format!("{space}, as this process is configured"), || {
        let what = format!("the database has {space}, but this process is configured for {ours}");
        Finding::failure(what, "set locks.buckets to the number in the database")
    });
    let complete = Finding::check(complete, "all buckets were created", || {
        Finding::failure("creating the buckets was interrupted", PROVISION)
    });
    let memory = judge_memory(&space, number(&mut connection, "innodb_buffer_pool_size").await?);
    let wanted = u64::from(options.max_connections + ADMIN_CONNECTIONS);
    let connections = judge_connections(wanted, number(&mut connection, "max_connections").await?);
    connection.close().await?;
    Ok(vec![agree, complete, memory, connections])
}

/// Checks that the buckets fit into the buffer pool. Rows are looked up at random, so the whole table is in use.
fn judge_memory(space: &BucketSpace, pool: u64) -> Finding {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (rows, pool) = (mib(space.bytes()), mib(pool));
    let what = format!("the buckets need about {rows} MiB; the server's buffer pool has {pool} MiB");
    Finding::check(rows < pool, what.clone(), || {
        let advice = "raise innodb_buffer_pool_size: locking a row that is not in memory waits for the disk";
        Finding::warning(what, advice)
    })
}

fn judge_connections(ours: u64, theirs: u64) -> Finding {
    let what = format!("allows {theirs} connections; a process uses up to {ours} more for locks");
    Finding::check(ours < theirs, what.clone(), || {
        Finding::warning(what, "raise the server's max_connections, or lower locks.max_connections")
    })
}

/// Reads a global variable of the server.
async fn number(connection: &mut MySqlConnection, name: &'static str) -> Result<u64, sqlx::Error> {
    const SHOW: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name = ?";
    let found: (String, String) = sqlx::query_as(SHOW).bind(name).fetch_one(connection).await?;
    Ok(found.1.parse().unwrap_or(0))
}
