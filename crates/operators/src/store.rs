//! The tables of the audit log. An entry is inserted, and its outcome is set once: no other statement changes one.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, MarkTable, on};
use sqlx::AssertSqlSafe;

use crate::audit_log::{Attempt, Entry, EntryFilter, Outcome, Page};

/// How many entries are removed at once: few, so that nobody waits for it.
const REMOVED_AT_ONCE: i64 = 500;

/// Entries whose change was committed.
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

/// Inserts an entry, with its outcome if that is known already.
pub(crate) async fn insert(
    db: &Db,
    id: Uuid,
    attempt: &Attempt,
    outcome: Option<(Outcome, u16)>,
) -> Result<(), Error> {
    let now = db.dialect().now();
    let finished = if outcome.is_some() { now } else { "NULL" };
    let text = format!(
        "INSERT INTO audit_log (entry_id, at, listener, actor_kind, actor, proof, subject, action, target, address, request_id, note, \
         outcome, status, finished_at) VALUES (?, {now}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {finished})"
    );
    let (outcome, status) = outcome.map(|(outcome, status)| (outcome.word(), i32::from(status))).unzip();
    let inserting = async {
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
    db.bounded(inserting).await
}

/// Sets the outcome of an entry, unless it has one.
pub(crate) async fn finish(db: &Db, id: Uuid, outcome: Outcome, status: u16) -> Result<(), Error> {
    let now = db.dialect().now();
    let text = format!(
        "UPDATE audit_log SET outcome = ?, status = ?, finished_at = {now} WHERE entry_id = ? AND outcome IS NULL"
    );
    let finishing = async {
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
    db.bounded(finishing).await
}

/// Lists entries that fit.
pub(crate) async fn list(db: &Db, filter: &EntryFilter, page: Page, limit: u32) -> Result<Vec<Entry>, Error> {
    let EntryFilter { actor, action, target, since, until, outcome } = filter;
    let mut conditions = vec!["1 = 1"];
    conditions.extend(actor.is_some().then_some("? IN (l.actor, l.subject)"));
    conditions.extend(action.is_some().then_some("INSTR(l.action, ?) > 0"));
    conditions.extend(target.is_some().then_some("INSTR(l.target, ?) > 0"));
    conditions.extend(since.is_some().then_some("l.at >= ?"));
    conditions.extend(until.is_some().then_some("l.at < ?"));
    conditions.extend(outcome.map(|outcome| match outcome {
        Outcome::Committed => "l.outcome IS NULL AND c.entry_id IS NOT NULL AND ? IS NOT NULL",
        Outcome::Unknown => "l.outcome IS NULL AND c.entry_id IS NULL AND ? IS NOT NULL",
        Outcome::Done | Outcome::Refused | Outcome::Failed => "l.outcome = ?",
    }));
    let (from, order) = match page {
        Page::Before(None) => (None, "l.number DESC"),
        Page::Before(Some(number)) => (Some(number), "l.number DESC"),
        Page::After(number) => (Some(number), "l.number ASC"),
    };
    conditions
        .extend(from.map(|_| if matches!(page, Page::After(_)) { "l.number > ?" } else { "l.number < ?" }));
    let text = format!("{COLUMNS} WHERE {} ORDER BY {order} LIMIT ?", conditions.join(" AND "));
    let words = [actor, action, target].into_iter().flatten().cloned();
    let words: Vec<String> = words.collect();
    let times: Vec<i64> = [since, until].into_iter().flatten().map(|time| time.as_millis()).collect();
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<EntryRow> = on!(connection, raw => {
            let mut query = sqlx::query_as(AssertSqlSafe(text));
            for word in &words {
                query = query.bind(word);
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
            query.bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let rows: Vec<EntryRow> = db.bounded(reading).await?;
    rows.into_iter().map(|row| entry_of(db, row)).collect()
}

fn entry_of(db: &Db, row: EntryRow) -> Result<Entry, Error> {
    let corrupt = |cause: &str| db.corrupt("audit_log", row.number.to_string(), cause.to_owned());
    let id = Uuid::from_slice(&row.entry_id).map_err(|_| corrupt("its id is no UUID"))?;
    let outcome = match (&row.outcome, &row.committed) {
        (Some(word), _) => Outcome::parse(word).ok_or_else(|| corrupt("its outcome is not known"))?,
        (None, Some(_)) => Outcome::Committed,
        (None, None) => Outcome::Unknown,
    };
    Ok(Entry {
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

/// Removes some of the entries that are older than this, with their marks. Returns how many.
pub(crate) async fn remove_old(db: &Db, age: Duration) -> Result<u64, Error> {
    const MARKS: &str =
        "DELETE FROM audit_commits WHERE entry_id IN (SELECT entry_id FROM audit_log WHERE number <= ?)";
    const ENTRIES: &str = "DELETE FROM audit_log WHERE number <= ?";
    let now = db.dialect().now();
    // The numbers follow the time closely enough: an entry goes when one behind it is old.
    let last = format!(
        "SELECT MAX(number) FROM (SELECT number FROM audit_log WHERE at < {now} - ? ORDER BY number LIMIT ?) AS old"
    );
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    let removing = async {
        let mut tx = db.begin().await?;
        let removed = on!(tx, connection => {
            let query = sqlx::query_as(AssertSqlSafe(last)).bind(age).bind(REMOVED_AT_ONCE);
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
    db.bounded(removing).await
}
