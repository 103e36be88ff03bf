//! Queries of entries for services and operators.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error};

use crate::DropId;
use crate::model::EntryState;
use crate::store::entry_state_number;

db::row! {
    struct EntryRow {
        user_id: Vec<u8>,
        state: i32,
        number: i64,
        place: i64,
        joined_at: i64,
        entered_at: Option<i64>,
    }
}

/// The fields of an entry that services and operators see.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntrySummary {
    pub(super) user: UserId,
    /// None for an unknown code.
    pub(super) state: Option<EntryState>,
    pub(super) number: i64,
    pub(super) place: i64,
    pub(super) joined_at: Timestamp,
    pub(super) entered_at: Option<Timestamp>,
}

impl EntryRow {
    fn read(self) -> EntrySummary {
        let states = [EntryState::Waiting, EntryState::Entered, EntryState::Left, EntryState::Expired];
        EntrySummary {
            user: UserId::from_uuid(Uuid::from_slice(&self.user_id).unwrap_or_default()),
            state: states.into_iter().find(|state| entry_state_number(*state) == self.state),
            number: self.number,
            place: self.place,
            joined_at: Timestamp::from_millis(self.joined_at),
            entered_at: self.entered_at.map(Timestamp::from_millis),
        }
    }
}

/// Counts the players inside.
pub(super) async fn inside(db: &Db, drop: DropId) -> Result<i64, Error> {
    const INSIDE: &str = "SELECT COUNT(*) FROM drop_entries WHERE drop_id = ? AND state = ?";
    let reading = async {
        let mut connection = db.connection().await?;
        Ok(db::on!(connection, raw => {
            sqlx::query_scalar(INSIDE)
                .bind(&drop.as_uuid().as_bytes()[..])
                .bind(entry_state_number(EntryState::Entered))
                .fetch_one(raw)
                .await?
        }))
    };
    db.bounded(reading).await
}

/// Reads the entries of users after `after`, in the order of user ids.
pub(super) async fn entries(
    db: &Db,
    drop: DropId,
    after: Option<UserId>,
    limit: u32,
) -> Result<Vec<EntrySummary>, Error> {
    const PAGE: &str = "SELECT user_id, state, number, place, joined_at, entered_at FROM drop_entries \
        WHERE drop_id = ? AND user_id > ? ORDER BY user_id LIMIT ?";
    let after = after.map_or(Uuid::nil(), |user| *user.as_uuid());
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<EntryRow> = db::on!(connection, raw => {
            sqlx::query_as(PAGE)
                .bind(&drop.as_uuid().as_bytes()[..])
                .bind(&after.as_bytes()[..])
                .bind(i64::from(limit))
                .fetch_all(raw)
                .await?
        });
        Ok(rows.into_iter().map(EntryRow::read).collect())
    };
    db.bounded(reading).await
}
