//! The tables of the audit log and of console sessions. An entry is inserted and its outcome is set once; no other statement changes
//! entries.

pub(crate) mod sessions;

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, MarkTable, on};
use sqlx::AssertSqlSafe;

use crate::audit_log::{Attempt, AuditEntry, AuditFilter, AuditOutcome, Page};

/// How many entries one transaction removes. Few, so that it holds its locks only briefly.
const REMOVE_BATCH: i64 = 500;

/// Marks the entries whose change was committed.
pub(crate) const COMMITS: MarkTable = MarkTable {
    sqlite: "INSERT OR IGNORE INTO audit_commits (entry_id)",
    mysql: "INSERT IGNORE INTO audit_commits (entry_id)",
};

const COLUMNS: &str = "SELECT l.number, l.entry_id, l.at, l.listener, l.actor_kind, l.actor, l.proof, l.subject, l.action, l.target, \
    l.address, l.request_id, l.note, l.outcome, l.status, l.finished_at, c.entry_id AS committed \
    FROM audit_log l LEFT JOIN audit_commits c ON c.entry_id = l.entry_id";

db::row! {
    struct EntryRow {
        number: i64,
        entry_id: Vec<u8>,
        at: i64,
        listener: String,
        actor_kind: String,
        actor: String,
        proof: String,
        subject: Option<String>,
        action: String,
        target: String,
        address: Option<String>,
        request_id: Option<String>,
        note: Option<String>,
        outcome: Option<String>,
        status: Option<i32>,
        finished_at: Option<i64>,
        committed: Option<Vec<u8>>,
    }
}

/// Inserts an entry, with its outcome if it is already known.
pub(crate) async fn insert(
    db: &Db,
    id: Uuid,
    attempt: &Attempt,
    outcome: Option<(AuditOutcome, u16)>,
) -> Result<(), Error> {
    let now = db.dialect().now();
    let finished = if outcome.is_some() { now } else { "NULL" };
    let text = format!(
        "INSERT INTO audit_log (entry_id, at, listener, actor_kind, actor, proof, subject, action, target, address, request_id, note, \
         outcome, status, finished_at) VALUES (?, {now}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {finished})"
    );
    let (outcome, status) = outcome.map(|(outcome, status)| (outcome.word(), i32::from(status))).unzip();
    let insert = async {
        let mut tx = db.begin().await?;
        on!(tx, connection => {
            sqlx::query(AssertSqlSafe(text))
                .bind(id.as_bytes().to_vec())
                .bind(attempt.listener)
                .bind(attempt.actor.kind)
                .bind(&attempt.actor.name)
                .bind(attempt.actor.proof)
                .bind(&attempt.actor.subject)
                .bind(&attempt.action)
                .bind(&attempt.target)
                .bind(attempt.address.map(|address| address.to_string()))
                .bind(&attempt.request_id)
                .bind(&attempt.note)
                .bind(outcome)
                .bind(status)
                .execute(connection)
                .await?;
        });
        tx.commit().await
    };
    db.bounded(insert).await
}

/// Sets the outcome of an entry that has none yet.
pub(crate) async fn finish(db: &Db, id: Uuid, outcome: AuditOutcome, status: u16) -> Result<(), Error> {
    let now = db.dialect().now();
    let text = format!(
        "UPDATE audit_log SET outcome = ?, status = ?, finished_at = {now} WHERE entry_id = ? AND outcome IS NULL"
    );
    let finish = async {
        let mut tx = db.begin().await?;
        on!(tx, connection => {
            sqlx::query(AssertSqlSafe(text))
                .bind(outcome.word())
                .bind(i32::from(status))
                .bind(id.as_bytes().to_vec())
                .execute(connection)
                .await?;
        });
        tx.commit().await
    };
    db.bounded(finish).await
}

/// Lists the entries that match the filter.
pub(crate) async fn list(
    db: &Db,
    filter: &AuditFilter,
    page: Page,
    limit: u32,
) -> Result<Vec<AuditEntry>, Error> {
    let AuditFilter { actor, action, target, since, until, outcome } = filter;
    let mut conditions = vec!["1 = 1"];
    conditions.extend(action.is_some().then_some("INSTR(l.action, ?) > 0"));
    conditions.extend(target.is_some().then_some("INSTR(l.target, ?) > 0"));
    conditions.extend(since.is_some().then_some("l.at >= ?"));
    conditions.extend(until.is_some().then_some("l.at < ?"));
    conditions.extend(outcome.map(|outcome| match outcome {
        AuditOutcome::Committed => "l.outcome IS NULL AND c.entry_id IS NOT NULL AND ? IS NOT NULL",
        AuditOutcome::Unknown => "l.outcome IS NULL AND c.entry_id IS NULL AND ? IS NOT NULL",
        AuditOutcome::Done | AuditOutcome::DryRun | AuditOutcome::Refused | AuditOutcome::Failed => {
            "l.outcome = ?"
        }
    }));
    let (from, order) = match page {
        Page::Before(None) => (None, "number DESC"),
        Page::Before(Some(number)) => (Some(number), "number DESC"),
        Page::After(number) => (Some(number), "number ASC"),
    };
    conditions
        .extend(from.map(|_| if matches!(page, Page::After(_)) { "l.number > ?" } else { "l.number < ?" }));
    let conditions = conditions.join(" AND ");
    // One query per index that finds an actor. An entry has one of both, or the same text in both.
    let by_actor: &[&str] = match actor {
        None => &[""],
        Some(_) => &["l.actor = ? AND ", "l.subject = ? AND l.actor <> l.subject AND "],
    };
    let queries: Vec<String> = by_actor
        .iter()
        .map(|by| {
            format!("SELECT * FROM ({COLUMNS} WHERE {by}{conditions} ORDER BY l.{order} LIMIT ?) AS found")
        })
        .collect();
    let text = format!("{} ORDER BY {order} LIMIT ?", queries.join(" UNION ALL "));
    let texts: Vec<&String> = [actor, action, target].into_iter().flatten().collect();
    let times: Vec<i64> = [since, until].into_iter().flatten().map(|time| time.as_millis()).collect();
    let read = async {
        let mut connection = db.connection().await?;
        let rows: Vec<EntryRow> = on!(connection, raw => {
            let mut query = sqlx::query_as(AssertSqlSafe(text));
            for _ in by_actor {
                for text in &texts {
                    query = query.bind(*text);
                }
                for time in &times {
                    query = query.bind(time);
                }
                if let Some(outcome) = outcome {
                    query = query.bind(outcome.word());
                }
                if let Some(from) = from {
                    query = query.bind(from);
                }
                query = query.bind(i64::from(limit));
            }
            query.bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let rows: Vec<EntryRow> = db.bounded(read).await?;
    rows.into_iter().map(|row| from_row(db, row)).collect()
}

/// Lists the newest entries of a request.
pub(crate) async fn of_request(db: &Db, request: &str, limit: u32) -> Result<Vec<AuditEntry>, Error> {
    let text = format!("{COLUMNS} WHERE l.request_id = ? ORDER BY l.number DESC LIMIT ?");
    let read = async {
        let mut connection = db.connection().await?;
        let rows: Vec<EntryRow> = on!(connection, raw => {
            let query = sqlx::query_as(AssertSqlSafe(text)).bind(request);
            query.bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let rows: Vec<EntryRow> = db.bounded(read).await?;
    rows.into_iter().map(|row| from_row(db, row)).collect()
}

fn from_row(db: &Db, row: EntryRow) -> Result<AuditEntry, Error> {
    let corrupt = |cause: &str| db.corrupt("audit_log", row.number.to_string(), cause.to_owned());
    let id = Uuid::from_slice(&row.entry_id).map_err(|_| corrupt("its id is not a UUID"))?;
    let outcome = match (&row.outcome, &row.committed) {
        (Some(word), _) => {
            AuditOutcome::parse(word).ok_or_else(|| corrupt("its outcome is not one of the known words"))?
        }
        (None, Some(_)) => AuditOutcome::Committed,
        (None, None) => AuditOutcome::Unknown,
    };
    Ok(AuditEntry {
        number: row.number,
        id,
        at: Timestamp::from_millis(row.at),
        listener: row.listener,
        actor_kind: row.actor_kind,
        actor: row.actor,
        proof: row.proof,
        subject: row.subject,
        action: row.action,
        target: row.target,
        address: row.address,
        request_id: row.request_id,
        note: row.note,
        outcome,
        status: row.status,
        finished: row.finished_at.map(Timestamp::from_millis),
    })
}

/// Removes a batch of entries that are older than `age`, with their marks. Returns how many.
pub(crate) async fn remove_old(db: &Db, age: Duration) -> Result<u64, Error> {
    const MARKS: &str =
        "DELETE FROM audit_commits WHERE entry_id IN (SELECT entry_id FROM audit_log WHERE number <= ?)";
    const ENTRIES: &str = "DELETE FROM audit_log WHERE number <= ?";
    let now = db.dialect().now();
    // Numbers are nearly in the order of time, so an entry is removed together with an older one of a higher number.
    let last = format!(
        "SELECT MAX(number) FROM (SELECT number FROM audit_log WHERE at < {now} - ? ORDER BY number LIMIT ?) AS old"
    );
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    let remove = async {
        let mut tx = db.begin().await?;
        let removed = on!(tx, connection => {
            let query = sqlx::query_as(AssertSqlSafe(last)).bind(age).bind(REMOVE_BATCH);
            let (last,): (Option<i64>,) = query.fetch_one(&mut *connection).await?;
            match last {
                None => 0,
                Some(last) => {
                    sqlx::query(MARKS).bind(last).execute(&mut *connection).await?;
                    sqlx::query(ENTRIES).bind(last).execute(connection).await?.rows_affected()
                }
            }
        });
        tx.commit().await?;
        Ok(removed)
    };
    db.bounded(remove).await
}
