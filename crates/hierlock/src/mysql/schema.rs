//! The tables, and the one row that says how ids become buckets.

use sqlx::mysql::MySqlConnection;
use sqlx::{Executor, Row as _};

use crate::{Error, ServerError, Space};

/// The tables, one statement each, in the order in which they are to be made.
pub const SCHEMA: [&str; 2] = [
    include_str!("../../migrations/0001_hier_lock_buckets.sql"),
    include_str!("../../migrations/0002_hier_lock_space.sql"),
];

/// The one row of `hier_lock_space`.
pub(super) const SPACE_ID: u8 = 1;

/// Makes the tables that are not there yet.
pub async fn create_tables(connection: &mut MySqlConnection) -> Result<(), Error> {
    for table in SCHEMA {
        match connection.execute(table).await {
            Err(error) if ServerError::of(&error) == Some(ServerError::AlreadyDone) => {}
            done => {
                done?;
            }
        }
    }
    Ok(())
}

/// What is recorded, and whether all its rows were made.
pub(super) async fn recorded(connection: &mut MySqlConnection) -> Result<Option<(Space, bool)>, sqlx::Error> {
    // Waits for whoever is changing it.
    const READ: &str = "SELECT buckets, hash, complete FROM hier_lock_space WHERE id = ? LOCK IN SHARE MODE";
    let Some(row) = sqlx::query(READ).bind(SPACE_ID).fetch_optional(connection).await? else {
        return Ok(None);
    };
    let buckets: i32 = row.try_get(0)?;
    let space = Space { buckets: buckets.unsigned_abs(), hash: row.try_get(1)? };
    Ok(Some((space, row.try_get(2)?)))
}

/// The next fencing token. None if nothing is recorded. A number may be left out, never given twice.
pub(super) async fn next_token(connection: &mut MySqlConnection) -> Result<Option<u64>, sqlx::Error> {
    const NEXT: &str = "UPDATE hier_lock_space SET last_token = LAST_INSERT_ID(last_token + 1) WHERE id = ?";
    let done = sqlx::query(NEXT).bind(SPACE_ID).execute(connection).await?;
    Ok((done.rows_affected() == 1).then(|| done.last_insert_id()))
}
