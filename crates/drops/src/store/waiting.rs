//! Queries that keep the line in Redis in step with the entries.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Error};

use super::bytes;
use super::rows::{LineMemberRow, entry_state_number};
use crate::DropId;
use crate::model::{EntryState, LineMember};

const WAITING: i32 = entry_state_number(EntryState::Waiting);
/// How many users one query looks up.
const CHUNK: usize = 500;

/// Reads the next waiting players behind `after`, in order.
pub(crate) async fn waiting_after(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    after: Option<LineMember>,
    limit: u32,
) -> Result<Vec<LineMember>, Error> {
    const AFTER: &str = "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND state = ? \
        AND place >= ? AND (place > ? OR user_id > ?) ORDER BY place, user_id LIMIT ?";
    // Places are never negative, so -1 is before all of them.
    let (place, user) =
        after.map_or((-1, Uuid::nil()), |member| (member.place.stored(), *member.user.as_uuid()));
    let rows: Vec<LineMemberRow> = db::on!(connection, raw => {
        sqlx::query_as(AFTER)
            .bind(bytes(drop.as_uuid()))
            .bind(WAITING)
            .bind(place)
            .bind(place)
            .bind(bytes(&user))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Reads the waiting players among `users`.
pub(crate) async fn waiting_among(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    users: &[UserId],
) -> Result<Vec<LineMember>, Error> {
    const AMONG: &str =
        "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND state = ? AND user_id IN ({list})";
    let mut members = Vec::with_capacity(users.len());
    for users in users.chunks(CHUNK) {
        let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
        let (text, padding) = db::list_text(AMONG, ids.len());
        let rows: Vec<LineMemberRow> = db::on!(connection, raw => {
            let query = sqlx::query_as(text).bind(bytes(drop.as_uuid())).bind(WAITING);
            db::bind_list!(query, ids, padding).fetch_all(raw).await?
        });
        for row in rows {
            members.push(row.read(db)?);
        }
    }
    Ok(members)
}

/// Reads the players who were admitted after `since` and do not wait again.
pub(crate) async fn entered_since(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    since: Timestamp,
) -> Result<Vec<LineMember>, Error> {
    const SINCE: &str =
        "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND entered_at > ? AND state <> ?";
    let rows: Vec<LineMemberRow> = db::on!(connection, raw => {
        sqlx::query_as(SINCE)
            .bind(bytes(drop.as_uuid()))
            .bind(since.as_millis())
            .bind(WAITING)
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}
