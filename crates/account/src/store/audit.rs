//! The SQL of audit records.

use base::Timestamp;
use db::{Error, Tx, on};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::{Queryable, key, unreadable, uuid};
use crate::{AuditId, AuditRecord, UserId};

db::row! {
    struct AuditRow {
        audit_id: Vec<u8>,
        user_id: Vec<u8>,
        at: i64,
        actor: String,
        action: String,
        detail: String,
    }
}

pub(crate) async fn insert_audit(
    tx: &mut Tx,
    user: UserId,
    actor: &str,
    action: &str,
    detail: &Value,
) -> Result<(), Error> {
    let now = tx.dialect().now();
    let text = format!(
        "INSERT INTO user_audit (user_id, at, audit_id, actor, action, detail) VALUES (?, {now}, ?, ?, ?, ?)"
    );
    let id = AuditId::generate();
    on!(tx, raw => {
        sqlx::query(AssertSqlSafe(text))
            .bind(key(user.as_uuid()))
            .bind(key(id.as_uuid()))
            .bind(actor)
            .bind(action)
            .bind(detail.to_string())
            .execute(raw)
            .await?;
    });
    Ok(())
}

/// Returns the audit records of a user, newest first.
pub(crate) async fn audit(
    from: &mut impl Queryable,
    user: UserId,
    limit: u32,
) -> Result<Vec<AuditRecord>, Error> {
    const READ: &str = "SELECT audit_id, user_id, at, actor, action, detail FROM user_audit
        WHERE user_id = ? ORDER BY at DESC, audit_id DESC LIMIT ?";
    let rows: Vec<AuditRow> = on!(from, raw => {
        sqlx::query_as(READ).bind(key(user.as_uuid())).bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(audit_of).collect()
}

fn audit_of(row: AuditRow) -> Result<AuditRecord, Error> {
    Ok(AuditRecord {
        id: AuditId::from_uuid(uuid(&row.audit_id)?),
        user: UserId::from_uuid(uuid(&row.user_id)?),
        at: Timestamp::from_millis(row.at),
        actor: row.actor,
        action: row.action,
        detail: serde_json::from_str(&row.detail).map_err(|error| unreadable(error.to_string()))?,
    })
}
