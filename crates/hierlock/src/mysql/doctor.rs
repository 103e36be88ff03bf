//! Whether the database is fit for locking.

use base::finding::Finding;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};

use super::schema::recorded;
use super::{provision, quiet};
use crate::{Error, Options, Space};

const PROVISION: &str = "run `playhouse locks provision`";

/// Looks at the buckets and at the server's settings. Changes nothing.
pub async fn examine(database: MySqlConnectOptions, options: &Options) -> Vec<Finding> {
    match look(database, options).await {
        Ok(findings) => findings,
        Err(error @ Error::NotProvisioned(_)) => vec![Finding::failure(error.to_string(), PROVISION)],
        Err(error) => vec![Finding::failure(base::error::chain(&error), "see what is said of the database")],
    }
}

async fn look(database: MySqlConnectOptions, options: &Options) -> Result<Vec<Finding>, Error> {
    let mut connection = quiet(database).connect().await?;
    let (space, complete) = recorded(&mut connection).await?.ok_or(Error::NotProvisioned(None))?;
    let ours = Space::new(options.buckets);
    let agree = Finding::when(space == ours, format!("{space}, as this process is set"), || {
        let what = format!("the database has {space}, this process is set to {ours}");
        Finding::failure(what, "set locks.buckets to what the database has")
    });
    let complete = Finding::when(complete, "all buckets were made", || {
        Finding::failure("making the buckets was interrupted", PROVISION)
    });
    Ok(vec![agree, complete, judge_memory(&mut connection).await?])
}

/// Locks are looked up at random, so the whole table is in use.
async fn judge_memory(connection: &mut MySqlConnection) -> Result<Finding, Error> {
    let pool: i64 = sqlx::query_scalar("SELECT CAST(@@innodb_buffer_pool_size AS SIGNED)")
        .fetch_one(&mut *connection)
        .await?;
    let (rows, pool) = (provision::bytes(connection).await?, pool.unsigned_abs());
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let what =
        format!("the buckets take up {} MiB, the server's buffer pool has {} MiB", mib(rows), mib(pool));
    Ok(Finding::when(rows < pool / 2, what.clone(), || {
        Finding::warning(
            what,
            "raise innodb_buffer_pool_size: locks whose rows are not in memory wait for the disk",
        )
    }))
}
