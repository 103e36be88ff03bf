//! What is no longer kept.

use std::time::Duration;

use base::id::Uuid;
use db::{Db, Error, Tx};
use sqlx::AssertSqlSafe;

/// How many rows are removed at once: few, so that nobody waits for it.
const REMOVED_AT_ONCE: i64 = 500;

/// Removes the inbox of a user, and keeps it empty.
pub(crate) async fn erase(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    let now = tx.dialect().now();
    let conflict = tx.dialect().pick(
        "ON CONFLICT (user_id) DO UPDATE SET erased_at = excluded.erased_at",
        "ON DUPLICATE KEY UPDATE erased_at = VALUES(erased_at)",
    );
    let close = format!(
        "INSERT INTO notification_head (user_id, position, erased_at) VALUES (?, 0, {now}) {conflict}"
    );
    let user = user.as_bytes().to_vec();
    db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(close)).bind(&user).execute(&mut *connection).await?;
        sqlx::query("DELETE FROM notification WHERE user_id = ?").bind(&user).execute(connection).await?;
    });
    Ok(())
}

/// Removes the letters of a user, and the user from the letters of events that name others, too.
pub(crate) async fn erase_letters(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    const OF_USER: &str = "DELETE FROM notification_dlq WHERE user_id = ?";
    const NAMING: &str = "SELECT id, destination, cause, payload FROM notification_dlq WHERE user_id IS NULL AND kind = 'event' \
        AND (INSTR(payload, ?) > 0 OR INSTR(payload, ?) > 0 OR INSTR(payload, ?) > 0 OR INSTR(payload, ?) > 0)";
    const REMOVE: &str = "DELETE FROM notification_dlq WHERE id = ?";
    const BLANK: &str = "UPDATE notification_dlq SET cause = ?, payload = ? WHERE id = ?";
    let names = Names::new(user);
    let naming: Vec<(i64, String, String, Vec<u8>)> = db::on!(tx, connection => {
        sqlx::query(OF_USER).bind(user.as_bytes().to_vec()).execute(&mut *connection).await?;
        let mut query = sqlx::query_as(NAMING);
        for (name, _) in &names.0 {
            query = query.bind(name.as_bytes().to_vec());
        }
        query.fetch_all(connection).await?
    });
    for (id, subject, cause, payload) in naming {
        let cause = names.blank(cause.as_bytes());
        db::on!(tx, connection => {
            let query = if names.is_in(subject.as_bytes()) || !names_others(&payload, user) {
                sqlx::query(REMOVE)
            } else {
                let cause = String::from_utf8_lossy(&cause).into_owned();
                sqlx::query(BLANK).bind(cause).bind(names.blank(&payload))
            };
            query.bind(id).execute(connection).await?;
        });
    }
    Ok(())
}

/// The ways to write a user's id in an event, each with what stands there when the user is erased.
struct Names([(String, String); 4]);

impl Names {
    fn new(user: Uuid) -> Self {
        let nobody = Uuid::nil();
        let (long, short) = (user.hyphenated().to_string(), user.simple().to_string());
        let (no_long, no_short) = (nobody.hyphenated().to_string(), nobody.simple().to_string());
        Self([
            (long.to_uppercase(), no_long.clone()),
            (short.to_uppercase(), no_short.clone()),
            (long, no_long),
            (short, no_short),
        ])
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|(name, _)| find(bytes, name.as_bytes()).is_some())
    }

    fn blank(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for (name, nobody) in &self.0 {
            // An id is never blanked into itself, unless it is nobody's already.
            while name != nobody
                && let Some(at) = find(&bytes, name.as_bytes())
            {
                bytes[at..at + name.len()].copy_from_slice(nobody.as_bytes());
            }
        }
        bytes
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Whether an event concerns somebody else as well.
fn names_others(payload: &[u8], user: Uuid) -> bool {
    let event: serde_json::Value = serde_json::from_slice(payload).unwrap_or_default();
    let users = event["data"]["user_ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    users.iter().any(|named| {
        named.as_str().and_then(|named| Uuid::try_parse(named).ok()).is_some_and(|named| named != user)
    })
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
