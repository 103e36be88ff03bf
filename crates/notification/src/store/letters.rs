//! The table of dead letters.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::uuid;
use crate::dead::{Letter, Letters};

const COLUMNS: &str = "SELECT id, letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, payload, \
    created_at, died_at FROM notification_dlq";
/// Without the payloads, which may be large.
const WITHOUT_PAYLOAD: &str = "SELECT id, letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, \
    X'' AS payload, created_at, died_at FROM notification_dlq";

db::row! {
    struct LetterRow {
        id: i64,
        letter_id: Vec<u8>,
        kind: String,
        destination: String,
        notification_id: Option<Vec<u8>>,
        user_id: Option<Vec<u8>>,
        stream_position: Option<i64>,
        attempts: i32,
        cause: String,
        payload: Vec<u8>,
        created_at: i64,
        died_at: i64,
    }
}

/// A letter to be written. It dies now.
#[derive(Debug)]
pub(crate) struct NewLetter<'a> {
    pub(crate) id: &'a Uuid,
    pub(crate) kind: &'a str,
    pub(crate) destination: &'a str,
    pub(crate) notification: Option<&'a Uuid>,
    pub(crate) user: Option<&'a Uuid>,
    pub(crate) stream_position: Option<i64>,
    pub(crate) attempts: i64,
    pub(crate) cause: &'a str,
    pub(crate) payload: &'a [u8],
    /// When the delivery was made; none for an event, which came now.
    pub(crate) created: Option<Timestamp>,
}

/// Writes a letter when the transaction is committed, unless it is there already.
pub(crate) fn add_letter(tx: &mut Tx, letter: &NewLetter<'_>) {
    let ignore = tx.dialect().pick("INSERT OR IGNORE", "INSERT IGNORE");
    let head = format!(
        "{ignore} INTO notification_dlq (letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, \
         payload, created_at, died_at)"
    );
    let row = [
        letter.id.into(),
        letter.kind.into(),
        letter.destination.into(),
        letter.notification.into(),
        letter.user.into(),
        letter.stream_position.into(),
        letter.attempts.into(),
        letter.cause.into(),
        letter.payload.into(),
        letter.created.map_or(Value::Now, Value::from),
        Value::Now,
    ];
    tx.insert_at_commit(&head, [row]);
}

/// Reads letters, the oldest first, each without its payload.
pub(crate) async fn letters(db: &Db, which: &Letters, limit: u32) -> Result<Vec<Letter>, Error> {
    let Letters { kind, destination, user, after, up_to } = which;
    let mut text = format!("{WITHOUT_PAYLOAD} WHERE id > ?");
    if up_to.is_some() {
        text.push_str(" AND id <= ?");
    }
    for (column, is_given) in
        [("kind", kind.is_some()), ("destination", destination.is_some()), ("user_id", user.is_some())]
    {
        if is_given {
            text.push_str(&format!(" AND {column} = ?"));
        }
    }
    text.push_str(" ORDER BY id LIMIT ?");
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<LetterRow> = db::on!(connection, raw => {
            let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(after);
            if let Some(up_to) = up_to {
                query = query.bind(up_to);
            }
            if let Some(kind) = kind {
                query = query.bind(kind);
            }
            if let Some(destination) = destination {
                query = query.bind(destination);
            }
            if let Some(user) = user {
                query = query.bind(user.as_bytes().to_vec());
            }
            query.bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok(rows.into_iter().map(Letter::from).collect())
    };
    db.bounded(reading).await
}

/// Reads one letter.
pub(crate) async fn letter(db: &Db, id: Uuid) -> Result<Option<Letter>, Error> {
    let text = AssertSqlSafe(format!("{COLUMNS} WHERE letter_id = ?"));
    let reading = async {
        let mut connection = db.connection().await?;
        let row: Option<LetterRow> = db::on!(connection, raw => {
            sqlx::query_as(text).bind(id.as_bytes().to_vec()).fetch_optional(raw).await?
        });
        Ok(row.map(Letter::from))
    };
    db.bounded(reading).await
}

/// Reads a letter and locks it until the transaction ends.
pub(crate) async fn lock_letter(tx: &mut Tx, id: Uuid) -> Result<Option<Letter>, Error> {
    let text =
        AssertSqlSafe(format!("{COLUMNS} WHERE letter_id = ? {}", tx.dialect().pick("", "FOR UPDATE")));
    let row: Option<LetterRow> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(id.as_bytes().to_vec()).fetch_optional(connection).await?
    });
    Ok(row.map(Letter::from))
}

pub(crate) async fn remove_letter(tx: &mut Tx, id: Uuid) -> Result<(), Error> {
    const REMOVE: &str = "DELETE FROM notification_dlq WHERE letter_id = ?";
    db::on!(tx, connection => {
        sqlx::query(REMOVE).bind(id.as_bytes().to_vec()).execute(connection).await?;
    });
    Ok(())
}

/// Returns up to `limit` letters that died longer than `age` ago by the store's clock, the oldest first.
pub(crate) async fn old_letters(db: &Db, age: Duration, limit: i64) -> Result<Vec<Uuid>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT letter_id FROM notification_dlq WHERE died_at < {} - ? ORDER BY died_at, id LIMIT ?",
        db.dialect().now()
    ));
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<(Vec<u8>,)> = db::on!(connection, raw => {
            sqlx::query_as(text).bind(age).bind(limit).fetch_all(raw).await?
        });
        Ok(rows.iter().map(|(id,)| uuid(id)).collect())
    };
    db.bounded(reading).await
}

/// Returns the number of the newest letter, or 0.
pub(crate) async fn last_letter(db: &Db) -> Result<i64, Error> {
    let reading = async {
        let mut connection = db.connection().await?;
        let (last,): (Option<i64>,) = db::on!(connection, raw => {
            sqlx::query_as("SELECT MAX(id) FROM notification_dlq").fetch_one(raw).await?
        });
        Ok(last.unwrap_or_default())
    };
    db.bounded(reading).await
}

/// Counts the letters of each kind that has any.
pub(crate) async fn count_letters(db: &Db) -> Result<Vec<(String, i64)>, Error> {
    let counting = async {
        let mut connection = db.connection().await?;
        Ok(db::on!(connection, raw => {
            sqlx::query_as("SELECT kind, COUNT(*) FROM notification_dlq GROUP BY kind").fetch_all(raw).await?
        }))
    };
    db.bounded(counting).await
}

impl From<LetterRow> for Letter {
    fn from(row: LetterRow) -> Self {
        Self {
            number: row.id,
            id: uuid(&row.letter_id),
            kind: row.kind,
            destination: row.destination,
            notification: row.notification_id.as_deref().map(uuid),
            user: row.user_id.as_deref().map(uuid),
            stream_position: row.stream_position,
            attempts: row.attempts.unsigned_abs(),
            cause: row.cause,
            payload: row.payload,
            created: Timestamp::from_millis(row.created_at),
            died: Timestamp::from_millis(row.died_at),
        }
    }
}
