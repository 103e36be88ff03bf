//! What is no longer kept.

use std::time::Duration;

use base::id::Uuid;
use db::{Db, Error, Tx};
use sqlx::AssertSqlSafe;

use super::uuid;

/// How many rows are removed at once: few, so that nobody waits for it.
const REMOVED_AT_ONCE: i64 = 500;

/// As it is read.
type Id = (Vec<u8>,);

/// What a user has left, to find the deliveries by.
pub(crate) struct Left {
    pub(crate) notifications: Vec<Uuid>,
    /// Those of deliveries go by their names, also when the inbox has forgotten the notification.
    pub(crate) letters: Vec<Uuid>,
}

/// Removes the inbox of a user, and keeps it empty.
pub(crate) async fn erase(tx: &mut Tx, user: Uuid) -> Result<Left, Error> {
    let now = tx.dialect().now();
    let conflict = tx.dialect().pick(
        "ON CONFLICT (user_id) DO UPDATE SET erased_at = excluded.erased_at",
        "ON DUPLICATE KEY UPDATE erased_at = VALUES(erased_at)",
    );
    let close = format!(
        "INSERT INTO notification_head (user_id, position, erased_at) VALUES (?, 0, {now}) {conflict}"
    );
    let user = user.as_bytes().to_vec();
    let (notifications, letters): (Vec<Id>, Vec<Id>) = db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(close)).bind(&user).execute(&mut *connection).await?;
        let ids = sqlx::query_as("SELECT notification_id FROM notification WHERE user_id = ?").bind(&user);
        let ids = ids.fetch_all(&mut *connection).await?;
        sqlx::query("DELETE FROM notification WHERE user_id = ?").bind(&user).execute(&mut *connection).await?;
        let letters = sqlx::query_as("SELECT letter_id FROM notification_dlq WHERE user_id = ?").bind(&user);
        (ids, letters.fetch_all(&mut *connection).await?)
    });
    let ids = |rows: &[Id]| rows.iter().map(|(id,)| uuid(id)).collect();
    Ok(Left { notifications: ids(&notifications), letters: ids(&letters) })
}

/// Removes the letters of a user.
pub(crate) async fn erase_letters(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    db::on!(tx, connection => {
        let query = sqlx::query("DELETE FROM notification_dlq WHERE user_id = ?");
        query.bind(user.as_bytes().to_vec()).execute(connection).await?;
    });
    Ok(())
}

/// Removes some of the notifications whose time is over, and says how many.
pub(crate) async fn remove_old(db: &Db) -> Result<u64, Error> {
    let now = db.dialect().now();
    let text = match db.dialect() {
        db::Dialect::Sqlite => format!(
            "DELETE FROM notification WHERE (user_id, position) IN \
             (SELECT user_id, position FROM notification WHERE remove_at < {now} ORDER BY remove_at LIMIT ?)"
        ),
        db::Dialect::MySql => {
            format!("DELETE FROM notification WHERE remove_at < {now} ORDER BY remove_at LIMIT ?")
        }
    };
    remove(db, text, None).await
}

/// Forgets some of the events that were taken in longer ago than this, and says how many.
pub(crate) async fn forget_events(db: &Db, age: Duration) -> Result<u64, Error> {
    let now = db.dialect().now();
    let text = match db.dialect() {
        db::Dialect::Sqlite => format!(
            "DELETE FROM notification_event WHERE event_id IN \
             (SELECT event_id FROM notification_event WHERE received_at < {now} - ? ORDER BY received_at LIMIT ?)"
        ),
        db::Dialect::MySql => {
            format!(
                "DELETE FROM notification_event WHERE received_at < {now} - ? ORDER BY received_at LIMIT ?"
            )
        }
    };
    remove(db, text, Some(age)).await
}

async fn remove(db: &Db, text: String, age: Option<Duration>) -> Result<u64, Error> {
    let removing = async {
        let mut tx = db.begin().await?;
        let removed = db::on!(tx, connection => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            if let Some(age) = age {
                query = query.bind(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
            }
            query.bind(REMOVED_AT_ONCE).execute(connection).await?.rows_affected()
        });
        tx.commit().await?;
        Ok(removed)
    };
    db.bounded(removing).await
}
