//! The table of open allocations.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::{AbandonReason, AbandonedMatch, OpenAllocation};
use crate::model::{Match, MatchId};

/// How many rows one statement writes or reads.
pub(super) const BATCH: usize = 500;

db::row! {
    struct AllocationRow {
        match_id: Vec<u8>,
        assigner: String,
        profile: String,
        ticket_ids: String,
        asked_at: i64,
    }
}

/// Adds the rows of matches that are about to be requested. The last [`BATCH`] rows are written with the commit.
pub(super) async fn open(tx: &mut Tx, assigner: &str, matches: &[Match]) -> Result<(), Error> {
    const INSERT: &str =
        "INSERT INTO matchmaking_allocation (match_id, assigner, profile, ticket_ids, asked_at)";
    for matches in matches.chunks(BATCH) {
        // Flush the previous chunk: a server limits the size of a packet.
        tx.flush().await?;
        let tickets: Vec<String> = matches.iter().map(ticket_ids).collect();
        let rows = matches.iter().zip(&tickets).map(|(match_, tickets)| {
            let profile = Value::Text(&match_.profile);
            [match_.id.as_uuid().into(), assigner.into(), profile, tickets.as_str().into(), Value::Now]
        });
        tx.insert_at_commit(INSERT, rows);
    }
    Ok(())
}

/// Deletes the rows of matches with the commit of the caller's transaction.
pub(crate) fn delete_rows(tx: &mut Tx, ids: &[MatchId]) {
    const DELETE: &str = "DELETE FROM matchmaking_allocation WHERE match_id";
    tx.delete_at_commit(DELETE, ids.iter().map(|id| id.as_uuid().into()));
}

/// Reads and locks the rows that still exist.
pub(super) async fn lock(
    tx: &mut Tx,
    abandoned: &[(MatchId, AbandonReason)],
) -> Result<Vec<(MatchId, AbandonedMatch)>, Error> {
    const SELECT: &str = "SELECT match_id, assigner, profile, ticket_ids, asked_at FROM matchmaking_allocation \
        WHERE match_id IN ({list})";
    if abandoned.is_empty() {
        return Ok(Vec::new());
    }
    let reasons: HashMap<MatchId, AbandonReason> = abandoned.iter().copied().collect();
    let for_update = tx.dialect().pick("", "FOR UPDATE");
    let ids: Vec<&[u8]> = abandoned.iter().map(|(id, _)| &id.as_uuid().as_bytes()[..]).collect();
    let (text, padding) = db::list_text(&format!("{SELECT} {for_update}"), ids.len());
    let rows: Vec<AllocationRow> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(connection).await?
    });
    let read = |row: AllocationRow| {
        let id = MatchId::from_uuid(Uuid::from_slice(&row.match_id).ok()?);
        let abandoned_match = AbandonedMatch {
            match_id: id.to_string(),
            assigner: row.assigner,
            match_profile: row.profile,
            ticket_ids: serde_json::from_str(&row.ticket_ids).unwrap_or_default(),
            reason: *reasons.get(&id)?,
            asked_at: row.asked_at,
        };
        Some((id, abandoned_match))
    };
    Ok(rows.into_iter().filter_map(read).collect())
}

/// Returns the number of open allocations, and up to [`BATCH`] of them older than `age` by the database's clock, the
/// oldest first.
pub(super) async fn overdue(db: &Db, age: Duration) -> Result<(i64, Vec<MatchId>), Error> {
    const COUNT: &str = "SELECT COUNT(*) FROM matchmaking_allocation";
    let text = AssertSqlSafe(format!(
        "SELECT match_id FROM matchmaking_allocation WHERE asked_at < {} - ? ORDER BY asked_at, match_id LIMIT {BATCH}",
        db.dialect().now()
    ));
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    let reading = async {
        let mut connection = db.connection().await?;
        let (open,): (i64,) = db::on!(connection, raw => sqlx::query_as(COUNT).fetch_one(raw).await?);
        if open == 0 {
            return Ok((0, Vec::new()));
        }
        let rows: Vec<(Vec<u8>,)> =
            db::on!(connection, raw => sqlx::query_as(text).bind(age).fetch_all(raw).await?);
        let id = |(id,): (Vec<u8>,)| Uuid::from_slice(&id).ok().map(MatchId::from_uuid);
        Ok((open, rows.into_iter().filter_map(id).collect()))
    };
    db.bounded(reading).await
}

/// Returns the oldest open allocations.
pub(super) async fn oldest(db: &Db, limit: u32) -> Result<Vec<OpenAllocation>, Error> {
    const OLDEST: &str = "SELECT match_id, assigner, profile, ticket_ids, asked_at FROM matchmaking_allocation \
        ORDER BY asked_at, match_id LIMIT ?";
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<AllocationRow> = db::on!(connection, raw => {
            sqlx::query_as(OLDEST).bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok(rows.into_iter().filter_map(AllocationRow::open).collect())
    };
    db.bounded(reading).await
}

/// Returns the open allocation of a match.
pub(super) async fn find(db: &Db, id: MatchId) -> Result<Option<OpenAllocation>, Error> {
    const FIND: &str = "SELECT match_id, assigner, profile, ticket_ids, asked_at FROM matchmaking_allocation \
        WHERE match_id = ?";
    let reading = async {
        let mut connection = db.connection().await?;
        let row: Option<AllocationRow> = db::on!(connection, raw => {
            sqlx::query_as(FIND).bind(&id.as_uuid().as_bytes()[..]).fetch_optional(raw).await?
        });
        Ok(row.and_then(AllocationRow::open))
    };
    db.bounded(reading).await
}

impl AllocationRow {
    fn open(self) -> Option<OpenAllocation> {
        let tickets: Vec<String> = serde_json::from_str(&self.ticket_ids).unwrap_or_default();
        Some(OpenAllocation {
            match_id: MatchId::from_uuid(Uuid::from_slice(&self.match_id).ok()?),
            assigner: self.assigner,
            profile: self.profile,
            tickets: tickets.len(),
            asked_at: Timestamp::from_millis(self.asked_at),
        })
    }
}

fn ticket_ids(match_: &Match) -> String {
    let ids: Vec<&str> = match_.tickets.iter().map(|ticket| ticket.id.as_str()).collect();
    serde_json::to_string(&ids).unwrap_or_default()
}
