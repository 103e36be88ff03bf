//! Removes rows: of erased users, and after their retention.

use std::time::Duration;

use base::id::Uuid;
use db::{Db, Error, Tx};
use sqlx::AssertSqlSafe;

/// How many rows one statement removes: few, so that other transactions do not wait long.
const ROWS_PER_STATEMENT: i64 = 500;

/// The dead letters of events that name a user. [`IdSpellings::ids`] are its values.
pub(super) const NAMING_USER: &str = "FROM notification_dlq WHERE user_id IS NULL AND kind = 'event' \
    AND (INSTR(payload, ?) > 0 OR INSTR(payload, ?) > 0 OR INSTR(payload, ?) > 0 OR INSTR(payload, ?) > 0)";

/// Removes the inbox of a user and marks the user as erased, so that nothing is added to it any more.
pub(crate) async fn erase(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    let now = tx.dialect().now();
    let conflict = tx.dialect().pick(
        "ON CONFLICT (user_id) DO UPDATE SET erased_at = excluded.erased_at",
        "ON DUPLICATE KEY UPDATE erased_at = VALUES(erased_at)",
    );
    let mark_erased = format!(
        "INSERT INTO notification_head (user_id, position, erased_at) VALUES (?, 0, {now}) {conflict}"
    );
    let user = user.as_bytes().to_vec();
    db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(mark_erased)).bind(&user).execute(&mut *connection).await?;
        sqlx::query("DELETE FROM notification WHERE user_id = ?").bind(&user).execute(connection).await?;
    });
    Ok(())
}

/// Removes the dead letters of a user. In dead letters of events that also name other users, blanks only the id of this user.
pub(crate) async fn erase_dead_letters(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    const OF_USER: &str = "DELETE FROM notification_dlq WHERE user_id = ?";
    const REMOVE: &str = "DELETE FROM notification_dlq WHERE id = ?";
    const BLANK: &str = "UPDATE notification_dlq SET cause = ?, payload = ? WHERE id = ?";
    let spellings = IdSpellings::new(user);
    let naming = format!("SELECT id, destination, cause, payload {NAMING_USER}");
    let naming: Vec<(i64, String, String, Vec<u8>)> = db::on!(tx, connection => {
        sqlx::query(OF_USER).bind(user.as_bytes().to_vec()).execute(&mut *connection).await?;
        let mut query = sqlx::query_as(AssertSqlSafe(naming));
        for id in spellings.ids() {
            query = query.bind(id);
        }
        query.fetch_all(connection).await?
    });
    for (id, subject, cause, payload) in naming {
        let cause = spellings.blank(cause.as_bytes());
        db::on!(tx, connection => {
            let query = if spellings.is_in(subject.as_bytes()) || !names_others(&payload, user) {
                sqlx::query(REMOVE)
            } else {
                let cause = String::from_utf8_lossy(&cause).into_owned();
                sqlx::query(BLANK).bind(cause).bind(spellings.blank(&payload))
            };
            query.bind(id).execute(connection).await?;
        });
    }
    Ok(())
}

/// The spellings of a user's id in an event, each with its replacement after the erasure.
pub(super) struct IdSpellings([(String, String); 4]);

impl IdSpellings {
    pub(super) fn new(user: Uuid) -> Self {
        let nil = Uuid::nil();
        let (long, short) = (user.hyphenated().to_string(), user.simple().to_string());
        let (nil_long, nil_short) = (nil.hyphenated().to_string(), nil.simple().to_string());
        Self([
            (long.to_uppercase(), nil_long.clone()),
            (short.to_uppercase(), nil_short.clone()),
            (long, nil_long),
            (short, nil_short),
        ])
    }

    /// Returns the spellings as bytes.
    pub(super) fn ids(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.0.iter().map(|(id, _)| id.as_bytes().to_vec())
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|(id, _)| find(bytes, id.as_bytes()).is_some())
    }

    fn blank(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for (id, nil) in &self.0 {
            // The nil id would be replaced by itself forever.
            while id != nil
                && let Some(at) = find(&bytes, id.as_bytes())
            {
                bytes[at..at + id.len()].copy_from_slice(nil.as_bytes());
            }
        }
        bytes
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Whether an event also names other users.
fn names_others(payload: &[u8], user: Uuid) -> bool {
    let event: serde_json::Value = serde_json::from_slice(payload).unwrap_or_default();
    let users = event["data"]["user_ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    users.iter().any(|named| {
        named.as_str().and_then(|named| Uuid::try_parse(named).ok()).is_some_and(|named| named != user)
    })
}

/// Removes some of the notifications whose retention is over. Returns how many.
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

/// Removes some of the event ids that are older than `age`. Returns how many.
pub(crate) async fn remove_event_ids(db: &Db, age: Duration) -> Result<u64, Error> {
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
            query.bind(ROWS_PER_STATEMENT).execute(connection).await?.rows_affected()
        });
        tx.commit().await?;
        Ok(removed)
    };
    db.bounded(removing).await
}
