//! The table of dead letters.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::remove::{IdSpellings, NAMING_USER};
use super::uuid;
use crate::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterGroup};

const COLUMNS: &str = "SELECT id, letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, payload, \
    created_at, died_at FROM notification_dlq";
/// Without the payloads, which may be large.
const WITHOUT_PAYLOAD: &str = "SELECT id, letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, \
    X'' AS payload, created_at, died_at FROM notification_dlq";

db::row! {
    struct DeadLetterRow {
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

/// Binds the values of a filter, in the order of [`conditions`].
macro_rules! bind_filter {
    ($query:expr, $filter:expr) => {{
        let DeadLetterFilter { kind, destination, user, cause, since, after, up_to } = $filter;
        let mut query = $query.bind(after);
        if let Some(up_to) = up_to {
            query = query.bind(up_to);
        }
        for text in [kind, destination].into_iter().flatten() {
            query = query.bind(text);
        }
        if let Some(user) = user {
            query = query.bind(user.as_bytes().to_vec());
        }
        if let Some(cause) = cause {
            query = query.bind(cause);
        }
        if let Some(since) = since {
            query = query.bind(since.as_millis());
        }
        query
    }};
}

/// A new dead letter. Its time of death is now.
#[derive(Debug)]
pub(crate) struct NewDeadLetter<'a> {
    pub(crate) id: &'a Uuid,
    pub(crate) kind: &'a str,
    pub(crate) destination: &'a str,
    pub(crate) notification: Option<&'a Uuid>,
    pub(crate) user: Option<&'a Uuid>,
    pub(crate) stream_position: Option<i64>,
    pub(crate) attempts: i64,
    pub(crate) cause: &'a str,
    pub(crate) payload: &'a [u8],
    /// When the delivery was created; none for an event, which arrived now.
    pub(crate) created: Option<Timestamp>,
}

/// Adds a dead letter to the commit of the transaction, unless it exists.
pub(crate) fn add_dead_letter(tx: &mut Tx, dead_letter: &NewDeadLetter<'_>) {
    let ignore = tx.dialect().pick("INSERT OR IGNORE", "INSERT IGNORE");
    let head = format!(
        "{ignore} INTO notification_dlq (letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, \
         payload, created_at, died_at)"
    );
    let row = [
        dead_letter.id.into(),
        dead_letter.kind.into(),
        dead_letter.destination.into(),
        dead_letter.notification.into(),
        dead_letter.user.into(),
        dead_letter.stream_position.into(),
        dead_letter.attempts.into(),
        dead_letter.cause.into(),
        dead_letter.payload.into(),
        dead_letter.created.map_or(Value::Now, Value::from),
        Value::Now,
    ];
    tx.insert_at_commit(&head, [row]);
}

/// Reads dead letters, oldest first, each without its payload.
pub(crate) async fn dead_letters(
    db: &Db,
    filter: &DeadLetterFilter,
    limit: u32,
) -> Result<Vec<DeadLetter>, Error> {
    let text = format!("{WITHOUT_PAYLOAD} WHERE {} ORDER BY id LIMIT ?", conditions(filter));
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<DeadLetterRow> = db::on!(connection, raw => {
            let query = bind_filter!(sqlx::query_as(AssertSqlSafe(text)), filter);
            query.bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok(rows.into_iter().map(DeadLetter::from).collect())
    };
    db.bounded(reading).await
}

/// Reads the dead letters of events that name a user, each without its payload. There are few: an event becomes a dead letter only if
/// it cannot be interpreted.
pub(crate) async fn dead_events_naming(db: &Db, user: Uuid) -> Result<Vec<DeadLetter>, Error> {
    let text = WITHOUT_PAYLOAD.replace("FROM notification_dlq", NAMING_USER);
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<DeadLetterRow> = db::on!(connection, raw => {
            let mut query = sqlx::query_as(AssertSqlSafe(text));
            for id in IdSpellings::new(user).ids() {
                query = query.bind(id);
            }
            query.fetch_all(raw).await?
        });
        Ok(rows.into_iter().map(DeadLetter::from).collect())
    };
    db.bounded(reading).await
}

/// Counts the dead letters that match, up to `cap + 1`.
pub(crate) async fn count_matching_dead_letters(
    db: &Db,
    filter: &DeadLetterFilter,
    cap: u64,
) -> Result<u64, Error> {
    let matching = format!("SELECT id FROM notification_dlq WHERE {} LIMIT ?", conditions(filter));
    let text = format!("SELECT COUNT(*) FROM ({matching}) AS counted");
    let limit = i64::try_from(cap).unwrap_or(i64::MAX - 1).saturating_add(1);
    let counting = async {
        let mut connection = db.connection().await?;
        let (count,): (i64,) = db::on!(connection, raw => {
            bind_filter!(sqlx::query_as(AssertSqlSafe(text)), filter).bind(limit).fetch_one(raw).await?
        });
        Ok(count.unsigned_abs())
    };
    db.bounded(counting).await
}

/// Returns the conditions of a filter, whose values [`bind_filter!`] binds.
fn conditions(filter: &DeadLetterFilter) -> String {
    let DeadLetterFilter { kind, destination, user, cause, since, after: _, up_to } = filter;
    let given = [
        (up_to.is_some(), "id <= ?"),
        (kind.is_some(), "kind = ?"),
        (destination.is_some(), "destination = ?"),
        (user.is_some(), "user_id = ?"),
        (cause.is_some(), "INSTR(cause, ?) > 0"),
        (since.is_some(), "died_at >= ?"),
    ];
    let given = given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, condition)| condition);
    ["id > ?"].into_iter().chain(given).collect::<Vec<_>>().join(" AND ")
}

db::row! {
    struct GroupRow {
        kind: String,
        cause: String,
        letters: i64,
        first_at: i64,
        last_at: i64,
    }
}

/// Groups the newest dead letters by kind and cause.
pub(crate) async fn group_dead_letters(
    db: &Db,
    newest: u32,
    groups: u32,
) -> Result<Vec<DeadLetterGroup>, Error> {
    const GROUPS: &str = "SELECT kind, cause, COUNT(*) AS letters, MIN(died_at) AS first_at, MAX(died_at) AS last_at FROM \
        (SELECT kind, cause, died_at FROM notification_dlq ORDER BY id DESC LIMIT ?) AS newest \
        GROUP BY kind, cause ORDER BY letters DESC, kind, cause LIMIT ?";
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<GroupRow> = db::on!(connection, raw => {
            sqlx::query_as(GROUPS).bind(i64::from(newest)).bind(i64::from(groups)).fetch_all(raw).await?
        });
        let group = |row: GroupRow| DeadLetterGroup {
            kind: row.kind,
            cause: row.cause,
            count: row.letters.unsigned_abs(),
            first: Timestamp::from_millis(row.first_at),
            last: Timestamp::from_millis(row.last_at),
        };
        Ok(rows.into_iter().map(group).collect())
    };
    db.bounded(reading).await
}

/// Reads a dead letter with its payload.
pub(crate) async fn dead_letter(db: &Db, id: Uuid) -> Result<Option<DeadLetter>, Error> {
    let text = AssertSqlSafe(format!("{COLUMNS} WHERE letter_id = ?"));
    let reading = async {
        let mut connection = db.connection().await?;
        let row: Option<DeadLetterRow> = db::on!(connection, raw => {
            sqlx::query_as(text).bind(id.as_bytes().to_vec()).fetch_optional(raw).await?
        });
        Ok(row.map(DeadLetter::from))
    };
    db.bounded(reading).await
}

/// Reads a dead letter and locks it until the transaction ends.
pub(crate) async fn lock_dead_letter(tx: &mut Tx, id: Uuid) -> Result<Option<DeadLetter>, Error> {
    let text =
        AssertSqlSafe(format!("{COLUMNS} WHERE letter_id = ? {}", tx.dialect().pick("", "FOR UPDATE")));
    let row: Option<DeadLetterRow> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(id.as_bytes().to_vec()).fetch_optional(connection).await?
    });
    Ok(row.map(DeadLetter::from))
}

pub(crate) async fn remove_dead_letter(tx: &mut Tx, id: Uuid) -> Result<(), Error> {
    const REMOVE: &str = "DELETE FROM notification_dlq WHERE letter_id = ?";
    db::on!(tx, connection => {
        sqlx::query(REMOVE).bind(id.as_bytes().to_vec()).execute(connection).await?;
    });
    Ok(())
}

/// Returns up to `limit` dead letters that are older than `age` by the database's clock, oldest first.
pub(crate) async fn old_dead_letters(db: &Db, age: Duration, limit: i64) -> Result<Vec<Uuid>, Error> {
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

/// Returns the number of the newest dead letter, or 0.
pub(crate) async fn last_dead_letter(db: &Db) -> Result<i64, Error> {
    let reading = async {
        let mut connection = db.connection().await?;
        let (last,): (Option<i64>,) = db::on!(connection, raw => {
            sqlx::query_as("SELECT MAX(id) FROM notification_dlq").fetch_one(raw).await?
        });
        Ok(last.unwrap_or_default())
    };
    db.bounded(reading).await
}

/// Counts the dead letters of each kind that has any.
pub(crate) async fn count_dead_letters(db: &Db) -> Result<Vec<(String, i64)>, Error> {
    let counting = async {
        let mut connection = db.connection().await?;
        Ok(db::on!(connection, raw => {
            sqlx::query_as("SELECT kind, COUNT(*) FROM notification_dlq GROUP BY kind").fetch_all(raw).await?
        }))
    };
    db.bounded(counting).await
}

impl From<DeadLetterRow> for DeadLetter {
    fn from(row: DeadLetterRow) -> Self {
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
