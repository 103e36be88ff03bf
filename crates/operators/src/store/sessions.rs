//! The table of console sessions.

use std::time::Duration;

use db::{Db, Error, on};
use sqlx::AssertSqlSafe;

use crate::sessions::StoredSession;

/// How many expired sessions one transaction removes.
const REMOVE_BATCH: i64 = 500;

db::row! {
    struct SessionRow {
        operator: String,
        token_hash: Option<String>,
        subject: Option<String>,
        read_only: i32,
    }
}

pub(crate) async fn insert(
    db: &Db,
    secret_hash: &str,
    session: &StoredSession,
    lifetime: Duration,
) -> Result<(), Error> {
    let now = db.dialect().now();
    let text = format!(
        "INSERT INTO console_sessions (secret_hash, operator, token_hash, subject, read_only, created_at, expires_at) \
         VALUES (?, ?, ?, ?, ?, {now}, {now} + ?)"
    );
    let lifetime = i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX / 2);
    let insert = async {
        let mut tx = db.begin().await?;
        on!(tx, raw => {
            sqlx::query(AssertSqlSafe(text))
                .bind(secret_hash)
                .bind(&session.operator)
                .bind(&session.token_hash)
                .bind(&session.subject)
                .bind(i32::from(session.read_only))
                .bind(lifetime)
                .execute(raw)
                .await?;
        });
        tx.commit().await
    };
    db.bounded(insert).await
}

/// Returns a session that has not expired.
pub(crate) async fn find(db: &Db, secret_hash: &str) -> Result<Option<StoredSession>, Error> {
    let now = db.dialect().now();
    let text = format!(
        "SELECT operator, token_hash, subject, read_only FROM console_sessions WHERE secret_hash = ? AND expires_at > {now}"
    );
    let read = async {
        let mut connection = db.connection().await?;
        let row: Option<SessionRow> = on!(connection, raw => {
            sqlx::query_as(AssertSqlSafe(text)).bind(secret_hash).fetch_optional(raw).await?
        });
        Ok::<_, Error>(row)
    };
    let row = db.bounded(read).await?;
    Ok(row.map(|SessionRow { operator, token_hash, subject, read_only }| StoredSession {
        operator,
        token_hash,
        subject,
        read_only: read_only != 0,
    }))
}

pub(crate) async fn remove(db: &Db, secret_hash: &str) -> Result<(), Error> {
    delete(db, "DELETE FROM console_sessions WHERE secret_hash = ?".to_owned(), Some(secret_hash))
        .await
        .map(drop)
}

/// Removes a batch of expired sessions. Returns how many.
pub(crate) async fn remove_expired(db: &Db) -> Result<u64, Error> {
    let now = db.dialect().now();
    let old = format!(
        "SELECT secret_hash FROM console_sessions WHERE expires_at <= {now} ORDER BY expires_at LIMIT {REMOVE_BATCH}"
    );
    // MySQL allows no LIMIT directly in IN.
    let text = format!("DELETE FROM console_sessions WHERE secret_hash IN (SELECT * FROM ({old}) AS old)");
    delete(db, text, None).await
}

async fn delete(db: &Db, text: String, value: Option<&str>) -> Result<u64, Error> {
    let delete = async {
        let mut tx = db.begin().await?;
        let removed = on!(tx, raw => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            if let Some(value) = value {
                query = query.bind(value);
            }
            query.execute(raw).await?.rows_affected()
        });
        tx.commit().await?;
        Ok(removed)
    };
    db.bounded(delete).await
}
