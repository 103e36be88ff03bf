//! The tables, and the single row that records how ids map to buckets.

use sqlx::mysql::MySqlConnection;
use sqlx::{Executor, Row as _};

use crate::{BucketSpace, Error, ServerError};

/// The statements that create the tables, in order.
pub const SCHEMA: [&str; 2] = [
    include_str!("../../migrations/0001_hier_lock_buckets.sql"),
    include_str!("../../migrations/0002_hier_lock_space.sql"),
];

/// The id of the only row of `hier_lock_space`.
pub(super) const SPACE_ID: u8 = 1;

/// Creates the tables that do not exist yet.
pub async fn create_tables(connection: &mut MySqlConnection) -> Result<(), Error> {
    for table in SCHEMA {
        match connection.execute(table).await {
            Err(error) if ServerError::classify(&error) == Some(ServerError::AlreadyApplied) => {}
            done => {
                done?;
            }
        }
    }
    Ok(())
}

/// Reads the recorded bucket space, and whether all its rows were created.
pub(super) async fn recorded(
    connection: &mut MySqlConnection,
) -> Result<Option<(BucketSpace, bool)>, sqlx::Error> {
    // A locking read: waits for a concurrent change to commit.
    const READ: &str = "SELECT buckets, hash, complete FROM hier_lock_space WHERE id = ? LOCK IN SHARE MODE";
    let Some(row) = sqlx::query(READ).bind(SPACE_ID).fetch_optional(connection).await? else {
        return Ok(None);
    };
    let buckets: i32 = row.try_get(0)?;
    let space = BucketSpace { buckets: buckets.unsigned_abs(), hash: row.try_get(1)? };
    Ok(Some((space, row.try_get(2)?)))
}

/// Draws the next fencing token. None if no bucket space is recorded. Tokens may have gaps but never repeat.
pub(super) async fn next_token(connection: &mut MySqlConnection) -> Result<Option<u64>, sqlx::Error> {
    const NEXT: &str = "UPDATE hier_lock_space SET last_token = LAST_INSERT_ID(last_token + 1) WHERE id = ?";
    let done = sqlx::query(NEXT).bind(SPACE_ID).execute(connection).await?;
    Ok((done.rows_affected() == 1).then(|| done.last_insert_id()))
}
