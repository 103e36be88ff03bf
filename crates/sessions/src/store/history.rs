//! The SQL of the durable record: ended sessions, presented refresh tokens, and one-time tokens that were used.

#[cfg(test)]
mod tests;

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Dialect, Error, Tx, on};
use sha2::{Digest, Sha256};
use sqlx::AssertSqlSafe;

use super::{Group, SessionId};

/// How many rows one statement removes. Few, so that it holds locks only briefly.
const REMOVE_BATCH: i64 = 500;
const TABLES: [&str; 3] = ["session_ends", "session_refreshes", "session_used"];

/// The key of a row: a SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordName([u8; 32]);

impl RecordName {
    pub(crate) fn for_session(id: &SessionId) -> Self {
        Self::new("session", id.as_str())
    }

    pub(crate) fn for_group(group: &Group) -> Self {
        Self::new("group", &group.0)
    }

    /// Names all sessions of a user.
    pub(crate) fn for_user(user: Uuid) -> Self {
        Self::new("user", &user.to_string())
    }

    /// Names a token that may be used once, such as the state of a sign-in.
    pub(crate) fn for_one_time_token(kind: &str, token: &str) -> Self {
        Self::new(kind, token)
    }

    fn new(kind: &str, text: &str) -> Self {
        let length = (kind.len() as u64).to_be_bytes();
        Self(Sha256::new().chain_update(length).chain_update(kind).chain_update(text).finalize().into())
    }
}

/// The end of a session or a group, to be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionEnd {
    pub(crate) name: RecordName,
    pub(crate) user: Option<Uuid>,
    /// How long the row must be kept.
    pub(crate) keep: Duration,
}

/// Consumes a one-time token. Returns the time by SQL's clock, or none if it was used before.
pub(crate) async fn consume(
    tx: &mut Tx,
    token: RecordName,
    keep: Duration,
) -> Result<Option<Timestamp>, Error> {
    const READ: &str = "SELECT used_at FROM session_used WHERE name = ?";
    let now = tx.dialect().now();
    let text = format!("INSERT INTO session_used (name, used_at, expires_at) VALUES (?, {now}, {now} + ?)");
    let inserted = async {
        on!(tx, raw => { sqlx::query(AssertSqlSafe(text)).bind(&token.0[..]).bind(millis(keep)).execute(raw).await?; });
        Ok(())
    };
    match inserted.await {
        Ok(()) => {}
        Err(Error::Duplicate(_)) => return Ok(None),
        Err(error) => return Err(error),
    }
    let at: i64 = on!(tx, raw => sqlx::query_scalar(READ).bind(&token.0[..]).fetch_one(raw).await?);
    Ok(Some(Timestamp::from_millis(at)))
}

/// Records an end at the current time of SQL's clock.
pub(crate) async fn end(tx: &mut Tx, end: &SessionEnd) -> Result<(), Error> {
    const SQLITE: &str = "ON CONFLICT (name) DO UPDATE SET ended_at = MAX(ended_at, excluded.ended_at),
        expires_at = MAX(expires_at, excluded.expires_at)";
    const MYSQL: &str = "ON DUPLICATE KEY UPDATE ended_at = GREATEST(ended_at, VALUES(ended_at)),
        expires_at = GREATEST(expires_at, VALUES(expires_at))";
    let (now, conflict) = (tx.dialect().now(), tx.dialect().pick(SQLITE, MYSQL));
    let text = format!(
        "INSERT INTO session_ends (name, user_id, ended_at, expires_at) VALUES (?, ?, {now}, {now} + ?) {conflict}"
    );
    on!(tx, raw => {
        let query = sqlx::query(AssertSqlSafe(text)).bind(&end.name.0[..]);
        let query = query.bind(end.user.map(|user| user.as_bytes().to_vec())).bind(millis(end.keep));
        query.execute(raw).await?;
    });
    Ok(())
}

/// Returns which of these names have ended, and when.
pub(crate) async fn ends(db: &Db, names: &[RecordName]) -> Result<Vec<(RecordName, Timestamp)>, Error> {
    const READ: &str = "SELECT name, ended_at FROM session_ends WHERE name IN ({list})";
    let list: Vec<&[u8]> = names.iter().map(|name| &name.0[..]).collect();
    let (text, padding) = db::list_text(READ, list.len());
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<(Vec<u8>, i64)> = on!(connection, raw => {
            db::bind_list!(sqlx::query_as(text), list, padding).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let rows = db.bounded(reading).await?;
    let row =
        |(name, at): (Vec<u8>, i64)| Some((RecordName(name.try_into().ok()?), Timestamp::from_millis(at)));
    Ok(rows.into_iter().filter_map(row).collect())
}

/// Records that the refresh token of this generation is presented. Returns false if this or a later one was presented before.
pub(crate) async fn spend(
    tx: &mut Tx,
    name: RecordName,
    user: Uuid,
    generation: i64,
    keep: Duration,
) -> Result<bool, Error> {
    const ADVANCE: &str = "UPDATE session_refreshes SET spent = ? WHERE name = ? AND spent <= ?";
    let now = tx.dialect().now();
    let advanced = on!(tx, raw => {
        let query = sqlx::query(ADVANCE).bind(generation + 1).bind(&name.0[..]).bind(generation);
        query.execute(raw).await?.rows_affected()
    });
    if advanced > 0 {
        return Ok(true);
    }
    let text = format!(
        "INSERT INTO session_refreshes (name, user_id, spent, expires_at) VALUES (?, ?, ?, {now} + ?)"
    );
    let inserted = async {
        on!(tx, raw => {
            let query = sqlx::query(AssertSqlSafe(text)).bind(&name.0[..]).bind(user.as_bytes().to_vec());
            query.bind(generation + 1).bind(millis(keep)).execute(raw).await?;
        });
        Ok(())
    };
    match inserted.await {
        Ok(()) => Ok(true),
        Err(Error::Duplicate(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Undoes a [`spend`] whose token the issuer did not accept.
pub(crate) async fn undo_spend(tx: &mut Tx, name: RecordName, generation: i64) -> Result<(), Error> {
    const UNDO: &str = "UPDATE session_refreshes SET spent = ? WHERE name = ? AND spent = ?";
    on!(tx, raw => {
        let query = sqlx::query(UNDO).bind(generation).bind(&name.0[..]).bind(generation + 1);
        query.execute(raw).await?;
    });
    Ok(())
}

/// A row about a session of a user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionRow {
    pub(crate) what: RowKind,
    /// When the row is no longer needed.
    pub(crate) expires_at: Timestamp,
}

/// What a row says about a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowKind {
    EndedAt(Timestamp),
    /// How many of its refresh tokens were presented to the issuer.
    Refreshed(i64),
}

/// Interprets the first column of a row.
type ToKind = fn(i64) -> RowKind;

/// Reads all rows that [`erase`] removes. A row expires with its session, so there are few.
pub(crate) async fn of_user(db: &Db, user: Uuid) -> Result<Vec<SessionRow>, Error> {
    const ENDS: &str = "SELECT ended_at, expires_at FROM session_ends WHERE user_id = ? ORDER BY ended_at";
    const REFRESHES: &str =
        "SELECT spent, expires_at FROM session_refreshes WHERE user_id = ? ORDER BY expires_at";
    let reading = async {
        let mut connection = db.connection().await?;
        let mut read = Vec::new();
        let kinds: [(&'static str, ToKind); 2] =
            [(ENDS, |at| RowKind::EndedAt(Timestamp::from_millis(at))), (REFRESHES, RowKind::Refreshed)];
        for (text, kind) in kinds {
            let rows: Vec<(i64, i64)> = on!(connection, raw => {
                sqlx::query_as(text).bind(user.as_bytes().to_vec()).fetch_all(raw).await?
            });
            read.extend(rows.into_iter().map(|(value, expires_at)| SessionRow {
                what: kind(value),
                expires_at: Timestamp::from_millis(expires_at),
            }));
        }
        Ok(read)
    };
    db.bounded(reading).await
}

/// Removes all rows of a user.
pub(crate) async fn erase(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    const REMOVE: [&str; 2] =
        ["DELETE FROM session_ends WHERE user_id = ?", "DELETE FROM session_refreshes WHERE user_id = ?"];
    for text in REMOVE {
        on!(tx, raw => { sqlx::query(text).bind(user.as_bytes().to_vec()).execute(raw).await?; });
    }
    Ok(())
}

/// Removes a batch of expired rows from each table. Returns how many.
pub(crate) async fn remove_expired(db: &Db) -> Result<u64, Error> {
    let now = db.dialect().now();
    let mut removed = 0;
    for table in TABLES {
        let text = match db.dialect() {
            Dialect::Sqlite => format!(
                "DELETE FROM {table} WHERE name IN \
                 (SELECT name FROM {table} WHERE expires_at < {now} ORDER BY expires_at LIMIT ?)"
            ),
            Dialect::MySql => {
                format!("DELETE FROM {table} WHERE expires_at < {now} ORDER BY expires_at LIMIT ?")
            }
        };
        let removing = async {
            let mut tx = db.begin().await?;
            let removed = on!(tx, raw => {
                sqlx::query(AssertSqlSafe(text)).bind(REMOVE_BATCH).execute(raw).await?.rows_affected()
            });
            tx.commit().await?;
            Ok::<_, Error>(removed)
        };
        removed += db.bounded(removing).await?;
    }
    Ok(removed)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}
