//! The table of open allocations.

use std::collections::HashMap;
use std::time::Duration;

use base::id::Uuid;
use db::{Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::{AbandonedMatch, Reason};
use crate::model::{Match, MatchId};

/// How many rows one message to the database has.
pub(super) const AT_ONCE: usize = 500;

db::row! {
    struct AllocationRow {
        match_id: Vec<u8>,
        assigner: String,
        profile: String,
        ticket_ids: String,
        asked_at: i64,
    }
}

/// Adds the rows of matches for which an allocator is about to be asked. The last [`AT_ONCE`] are written with the commit.
pub(super) async fn open(tx: &mut Tx, assigner: &str, matches: &[Match]) -> Result<(), Error> {
    const INSERT: &str =
        "INSERT INTO matchmaking_allocation (match_id, assigner, profile, ticket_ids, asked_at)";
    for matches in matches.chunks(AT_ONCE) {
        // What the chunk before has: a server takes messages up to some size only.
        tx.write().await?;
        let tickets: Vec<String> = matches.iter().map(ticket_ids).collect();
        let rows = matches.iter().zip(&tickets).map(|(made, tickets)| {
            let profile = Value::Text(&made.profile);
            [made.id.as_uuid().into(), assigner.into(), profile, tickets.as_str().into(), Value::Now]
        });
        tx.insert_at_commit(INSERT, rows);
    }
    Ok(())
}

/// Removes the rows of matches from the table, with the commit of the transaction that records them or forgets them.
pub(crate) fn forget_in(tx: &mut Tx, ids: &[MatchId]) {
    const DELETE: &str = "DELETE FROM matchmaking_allocation WHERE match_id";
    tx.delete_at_commit(DELETE, ids.iter().map(|id| id.as_uuid().into()));
}

/// Reads and locks the rows that are still there.
pub(super) async fn lock(
    tx: &mut Tx,
    abandoned: &[(MatchId, Reason)],
) -> Result<Vec<(MatchId, AbandonedMatch)>, Error> {
    const SELECT: &str = "SELECT match_id, assigner, profile, ticket_ids, asked_at FROM matchmaking_allocation \
        WHERE match_id IN ({list})";
    if abandoned.is_empty() {
        return Ok(Vec::new());
    }
    let reasons: HashMap<MatchId, Reason> = abandoned.iter().copied().collect();
    let for_update = tx.dialect().pick("", "FOR UPDATE");
    let ids: Vec<&[u8]> = abandoned.iter().map(|(id, _)| &id.as_uuid().as_bytes()[..]).collect();
    let (text, padding) = db::list_text(&format!("{SELECT} {for_update}"), ids.len());
    let rows: Vec<AllocationRow> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(connection).await?
    });
    let read = |row: AllocationRow| {
        let id = MatchId::from_uuid(Uuid::from_slice(&row.match_id).ok()?);
        let lost = AbandonedMatch {
            match_id: id.to_string(),
            assigner: row.assigner,
            match_profile: row.profile,
            ticket_ids: serde_json::from_str(&row.ticket_ids).unwrap_or_default(),
            reason: *reasons.get(&id)?,
            asked_at: row.asked_at,
        };
        Some((id, lost))
    };
    Ok(rows.into_iter().filter_map(read).collect())
}

/// Returns how many allocations are open, and up to [`AT_ONCE`] that are older than `age` by the store's clock, the oldest first.
pub(super) async fn overdue(db: &Db, age: Duration) -> Result<(i64, Vec<MatchId>), Error> {
    const COUNT: &str = "SELECT COUNT(*) FROM matchmaking_allocation";
    let text = AssertSqlSafe(format!(
        "SELECT match_id FROM matchmaking_allocation WHERE asked_at < {} - ? ORDER BY asked_at, match_id LIMIT {AT_ONCE}",
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

fn ticket_ids(made: &Match) -> String {
    let ids: Vec<&str> = made.tickets.iter().map(|ticket| ticket.id.as_str()).collect();
    serde_json::to_string(&ids).unwrap_or_default()
}
