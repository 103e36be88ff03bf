//! The tables of drops and of their lines.

mod drops;
mod entries;
mod rows;

pub(crate) use self::drops::{
    Locked, NewDrop, due_cycles, due_to_close, due_to_open, ended_lately, get, insert, list, lock, measured,
    reserved, save, save_head, with_lines,
};
pub(crate) use entries::{
    admit, cohort, entry, expire, find, first_expired, first_waiting, inside, replace, waiting_after,
    waiting_among,
};
pub(crate) use rows::drop_state_number;

use base::Timestamp;
use db::{Error, Tx};
use sqlx::AssertSqlSafe;

/// Returns the store's time. A statement of its own: the one that locks has the time at which it began to wait.
pub(crate) async fn now(tx: &mut Tx) -> Result<Timestamp, Error> {
    let text = AssertSqlSafe(format!("SELECT {}", tx.dialect().now()));
    let millis: i64 = db::on!(tx, connection => sqlx::query_scalar(text).fetch_one(connection).await?);
    Ok(Timestamp::from_millis(millis))
}
