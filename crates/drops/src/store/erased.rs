//! Recently erased users.

use std::time::Duration;

use account::UserId;
use base::Timestamp;
use db::{Db, Error, Tx};
use sqlx::AssertSqlSafe;

use super::rows::drop_state_number;
use super::{bytes, uuid};
use crate::model::DropState;

/// How long the mark of an erased user is kept: longer than any of their requests can be in flight, and longer than their session lasts.
const RETENTION: Duration = Duration::from_secs(24 * 3_600);

/// Locks the heads of all drops that have not ended, so that no player joins or is admitted until the transaction ends.
pub(crate) async fn lock_running_heads(tx: &mut Tx) -> Result<(), Error> {
    let running = AssertSqlSafe(format!(
        "SELECT drop_id FROM drops WHERE state NOT IN ({}, {}) ORDER BY drop_id",
        drop_state_number(DropState::Closed),
        drop_state_number(DropState::Cancelled),
    ));
    let lock = super::locking(
        tx.dialect(),
        "SELECT drop_id FROM drop_heads WHERE drop_id IN ({list}) ORDER BY drop_id",
        " FOR UPDATE",
    );
    db::on!(tx, connection => {
        let drops: Vec<Vec<u8>> = sqlx::query_scalar(running).fetch_all(&mut *connection).await?;
        let drops: Vec<&[u8]> = drops.iter().map(|drop| &drop[..]).collect();
        let (lock, padding) = db::list_text(&lock, drops.len());
        let _held: Vec<Vec<u8>> =
            db::bind_list!(sqlx::query_scalar(lock), drops, padding).fetch_all(&mut *connection).await?;
    });
    Ok(())
}

/// Marks a user as erased and removes their entries. A join after this transaction finds the mark.
pub(crate) async fn erase_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    const REMOVE: &str = "DELETE FROM drop_entries WHERE user_id = ?";
    let dialect = tx.dialect();
    let mark = dialect.pick(
        "INSERT INTO drop_erased_users (user_id, erased_at) VALUES (?, {now}) ON CONFLICT (user_id) DO NOTHING",
        "INSERT IGNORE INTO drop_erased_users (user_id, erased_at) VALUES (?, {now})",
    );
    let mark = AssertSqlSafe(mark.replace("{now}", dialect.now()));
    db::on!(tx, connection => {
        sqlx::query(mark).bind(bytes(user.as_uuid())).execute(&mut *connection).await?;
        sqlx::query(REMOVE).bind(bytes(user.as_uuid())).execute(&mut *connection).await?;
    });
    Ok(())
}

/// Returns the store's time and the recently erased users among `users`, in one query. The caller holds the drop's head.
pub(crate) async fn now_and_erased(tx: &mut Tx, users: &[UserId]) -> Result<(Timestamp, Vec<UserId>), Error> {
    const READ: &str = "SELECT {now}, e.user_id FROM (SELECT 1 AS one) o \
        LEFT JOIN drop_erased_users e ON e.user_id IN ({list})";
    let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
    let (text, padding) = db::list_text(&READ.replace("{now}", tx.dialect().now()), ids.len());
    let rows: Vec<(i64, Option<Vec<u8>>)> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(connection).await?
    });
    let now = Timestamp::from_millis(rows.first().map_or(0, |(now, _)| *now));
    let erased = rows.iter().filter_map(|(_, user)| Some(UserId::from_uuid(uuid(user.as_deref()?))));
    Ok((now, erased.collect()))
}

/// Removes the marks of users who were erased longer than [`RETENTION`] ago.
pub(crate) async fn prune_erased(db: &Db) -> Result<(), Error> {
    let text = AssertSqlSafe(format!(
        "DELETE FROM drop_erased_users WHERE erased_at < {} - {}",
        db.dialect().now(),
        RETENTION.as_millis()
    ));
    db.bounded(async {
        let mut tx = db.begin().await?;
        db::on!(tx, connection => { sqlx::query(text).execute(connection).await?; });
        tx.commit().await
    })
    .await
}
