//! The SQL of what must stay known when Redis goes back in time: sessions that ended, refresh tokens that were presented, words that were
//! used.

#[cfg(test)]
mod tests;

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Dialect, Error, Tx, on};
use sha2::{Digest, Sha256};
use sqlx::AssertSqlSafe;

use super::{Group, SessionId};

/// How many rows are removed at once: few, so that nobody waits for it.
const REMOVED_AT_ONCE: i64 = 500;
const TABLES: [&str; 3] = ["session_ends", "session_refreshes", "session_used"];

/// The name under which something is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name([u8; 32]);

impl Name {
    pub(crate) fn of_session(id: &SessionId) -> Self {
        Self::of("session", id.as_str())
    }

    pub(crate) fn of_group(group: &Group) -> Self {
        Self::of("group", &group.0)
    }

    /// All sessions of a user.
    pub(crate) fn of_user(user: Uuid) -> Self {
        Self::of("user", &user.to_string())
    }

    /// A word that may be used once, among others of its kind.
    pub(crate) fn of_word(kind: &str, word: &str) -> Self {
        Self::of(kind, word)
    }

    fn of(kind: &str, text: &str) -> Self {
        let length = (kind.len() as u64).to_be_bytes();
        Self(Sha256::new().chain_update(length).chain_update(kind).chain_update(text).finalize().into())
    }
}

/// Something to record as ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) name: Name,
    pub(crate) user: Option<Uuid>,
    /// How long it must stay known.
    pub(crate) keep: Duration,
}

/// Uses up a word. Returns when, by the store's clock; none if it was used before.
pub(crate) async fn use_up(tx: &mut Tx, word: Name, keep: Duration) -> Result<Option<Timestamp>, Error> {
    const READ: &str = "SELECT used_at FROM session_used WHERE name = ?";
    let now = tx.dialect().now();
    let text = format!("INSERT INTO session_used (name, used_at, expires_at) VALUES (?, {now}, {now} + ?)");
    let inserted = async {
        on!(tx, raw => { sqlx::query(AssertSqlSafe(text)).bind(&word.0[..]).bind(millis(keep)).execute(raw).await?; });
        Ok(())
    };
    match inserted.await {
        Ok(()) => {}
        Err(Error::Duplicate(_)) => return Ok(None),
        Err(error) => return Err(error),
    }
    let at: i64 = on!(tx, raw => sqlx::query_scalar(READ).bind(&word.0[..]).fetch_one(raw).await?);
    Ok(Some(Timestamp::from_millis(at)))
}

/// Records an end, as of now.
pub(crate) async fn end(tx: &mut Tx, end: &End) -> Result<(), Error> {
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

/// Returns those of these that have ended, and when.
pub(crate) async fn ends(db: &Db, names: &[Name]) -> Result<Vec<(Name, Timestamp)>, Error> {
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
    let row = |(name, at): (Vec<u8>, i64)| Some((Name(name.try_into().ok()?), Timestamp::from_millis(at)));
    Ok(rows.into_iter().filter_map(row).collect())
}

/// Records that the refresh token of this generation is presented. Returns false if it or a later one was presented before.
pub(crate) async fn spend(
    tx: &mut Tx,
    name: Name,
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

/// Takes back a [`spend`] whose token the issuer did not take.
pub(crate) async fn unspend(tx: &mut Tx, name: Name, generation: i64) -> Result<(), Error> {
    const BACK: &str = "UPDATE session_refreshes SET spent = ? WHERE name = ? AND spent = ?";
    on!(tx, raw => {
        let query = sqlx::query(BACK).bind(generation).bind(&name.0[..]).bind(generation + 1);
        query.execute(raw).await?;
    });
    Ok(())
}

/// Removes everything that is recorded of a user.
pub(crate) async fn erase(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    const REMOVE: [&str; 2] =
        ["DELETE FROM session_ends WHERE user_id = ?", "DELETE FROM session_refreshes WHERE user_id = ?"];
    for text in REMOVE {
        on!(tx, raw => { sqlx::query(text).bind(user.as_bytes().to_vec()).execute(raw).await?; });
    }
    Ok(())
}

/// Removes some of the rows that are no longer needed, and returns how many.
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
                sqlx::query(AssertSqlSafe(text)).bind(REMOVED_AT_ONCE).execute(raw).await?.rows_affected()
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
