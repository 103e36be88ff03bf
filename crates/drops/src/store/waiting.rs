//! Who waits and who does not any more, as far as the line must know.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Error};

use super::bytes;
use super::rows::{SpotRow, entry_state_number};
use crate::DropId;
use crate::model::{EntryState, Spot};

const WAITING: i32 = entry_state_number(EntryState::Waiting);
/// How many users one query asks for.
const AT_ONCE: usize = 500;

/// Reads the next who wait behind a spot, in order.
pub(crate) async fn waiting_after(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    after: Option<Spot>,
    limit: u32,
) -> Result<Vec<Spot>, Error> {
    const AFTER: &str = "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND state = ? \
        AND place >= ? AND (place > ? OR user_id > ?) ORDER BY place, user_id LIMIT ?";
    // No place is negative: this one is before all.
    let (place, user) = after.map_or((-1, Uuid::nil()), |spot| (spot.place.stored(), *spot.user.as_uuid()));
    let rows: Vec<SpotRow> = db::on!(connection, raw => {
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

/// Reads where those of these users stand who wait.
pub(crate) async fn waiting_among(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    users: &[UserId],
) -> Result<Vec<Spot>, Error> {
    const AMONG: &str =
        "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND state = ? AND user_id IN ({list})";
    let mut spots = Vec::with_capacity(users.len());
    for users in users.chunks(AT_ONCE) {
        let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
        let (text, padding) = db::list_text(AMONG, ids.len());
        let rows: Vec<SpotRow> = db::on!(connection, raw => {
            let query = sqlx::query_as(text).bind(bytes(drop.as_uuid())).bind(WAITING);
            db::bind_list!(query, ids, padding).fetch_all(raw).await?
        });
        for row in rows {
            spots.push(row.read(db)?);
        }
    }
    Ok(spots)
}

/// Reads the spots of those who were admitted after a time and do not wait again.
pub(crate) async fn entered_since(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    since: Timestamp,
) -> Result<Vec<Spot>, Error> {
    const SINCE: &str =
        "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND entered_at > ? AND state <> ?";
    let rows: Vec<SpotRow> = db::on!(connection, raw => {
        sqlx::query_as(SINCE)
            .bind(bytes(drop.as_uuid()))
            .bind(since.as_millis())
            .bind(WAITING)
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}
