//! Queries of the screens and traces of drops.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error};
use sqlx::AssertSqlSafe;

use crate::model::{DropRecord, EntryState, LineEntry};
use crate::orders::OrderState;
use crate::orders::store::{self as orders, DatedOrder, SurplusPayment, WhichOrders};
use crate::stock::store::levels_of;
use crate::stock::{Levels, Reservation};
use crate::store::{self, PlayerEntry, bytes, entry_state_number};
use crate::{DropId, ReservationId};

/// A drop with the counts of its stock.
#[derive(Clone, Debug)]
pub(super) struct ListedDrop {
    pub(super) drop: DropRecord,
    pub(super) levels: Levels,
}

/// Which drops to list, the newest first.
#[derive(Clone, Copy, Debug)]
pub(super) enum WhichDrops {
    /// Scheduled, open or paused.
    Running,
    /// Created before this one.
    Before(Option<DropId>),
}

/// Lists drops with their stock, the newest first.
pub(super) async fn list(db: &Db, which: WhichDrops, limit: u32) -> Result<Vec<ListedDrop>, Error> {
    let reading = async {
        let mut connection = db.connection().await?;
        let drops = match which {
            WhichDrops::Running => store::running(db, &mut connection, limit).await?,
            WhichDrops::Before(before) => store::newest(db, &mut connection, before, limit).await?,
        };
        if drops.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<DropId> = drops.iter().map(|drop| drop.id).collect();
        let levels: std::collections::HashMap<DropId, Levels> =
            levels_of(&mut connection, &ids).await?.into_iter().collect();
        let listed =
            |drop: DropRecord| ListedDrop { levels: levels.get(&drop.id).copied().unwrap_or_default(), drop };
        Ok(drops.into_iter().map(listed).collect())
    };
    db.bounded(reading).await
}

/// Counts the entries of a drop in a state, up to `cap`.
pub(super) async fn count_entries(db: &Db, drop: DropId, state: EntryState, cap: u64) -> Result<u64, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM drop_entries WHERE drop_id = ? AND state = ? LIMIT {cap}) counted"
    ));
    let counting = async {
        let mut connection = db.connection().await?;
        let counted: i64 = db::on!(connection, raw => {
            sqlx::query_scalar(text)
                .bind(bytes(drop.as_uuid()))
                .bind(entry_state_number(state))
                .fetch_one(raw)
                .await?
        });
        Ok(counted.unsigned_abs())
    };
    db.bounded(counting).await
}

/// Counts the admissions of the last minute by the database's clock, up to `cap`.
pub(super) async fn admissions_in_last_minute(db: &Db, drop: DropId, cap: u64) -> Result<u64, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM drop_entries WHERE drop_id = ? AND entered_at > {} - 60000 LIMIT {cap}) counted",
        db.dialect().now()
    ));
    let counting = async {
        let mut connection = db.connection().await?;
        let counted: i64 = db::on!(connection, raw => {
            sqlx::query_scalar(text).bind(bytes(drop.as_uuid())).fetch_one(raw).await?
        });
        Ok(counted.unsigned_abs())
    };
    db.bounded(counting).await
}

/// Counts the orders of a drop by state, each up to `cap`.
pub(super) async fn order_counts(db: &Db, drop: DropId, cap: u64) -> Result<Vec<(OrderState, u64)>, Error> {
    let counting = async {
        let mut connection = db.connection().await?;
        let mut counts = Vec::with_capacity(OrderState::ALL.len());
        for state in OrderState::ALL {
            counts.push((state, orders::count_in_state(&mut connection, drop, state, cap).await?));
        }
        Ok(counts)
    };
    db.bounded(counting).await
}

/// Reads up to `limit` orders, the newest first.
pub(super) async fn orders(db: &Db, which: WhichOrders<'_>, limit: u32) -> Result<Vec<DatedOrder>, Error> {
    db.bounded(async { orders::dated(&mut db.connection().await?, which, limit).await }).await
}

/// Reads the entries of a drop in a state in the order of the line, after the place and user of `after`.
pub(super) async fn line(
    db: &Db,
    drop: DropId,
    state: EntryState,
    after: Option<(i64, Uuid)>,
    limit: u32,
) -> Result<Vec<LineEntry>, Error> {
    let reading = async {
        let (place, user) = after.unwrap_or((-1, Uuid::max()));
        store::entries_after(db, &mut db.connection().await?, drop, state, (place, user), limit).await
    };
    db.bounded(reading).await
}

/// Reads all entries of a player, the latest join first, beginning after the time and drop of `before`.
pub(super) async fn entries_of_user(
    db: &Db,
    user: UserId,
    before: Option<(Timestamp, DropId)>,
    limit: u32,
) -> Result<Vec<PlayerEntry>, Error> {
    let reading =
        async { store::all_entries_of_player(db, &mut db.connection().await?, user, before, limit).await };
    db.bounded(reading).await
}

/// Reads a user's reservations that were made before `before`, the newest first.
pub(super) async fn reservations_of_user(
    db: &Db,
    user: UserId,
    before: Option<ReservationId>,
    limit: u32,
) -> Result<Vec<Reservation>, Error> {
    let reading =
        async { crate::stock::store::newest_of_user(&mut db.connection().await?, user, before, limit).await };
    db.bounded(reading).await
}

/// Reads the surplus payments for a user's orders, the oldest first.
pub(super) async fn surplus_of_user(db: &Db, user: UserId) -> Result<Vec<SurplusPayment>, Error> {
    db.bounded(async { orders::surplus_of_user(&mut db.connection().await?, user).await }).await
}

/// Reads a reservation.
pub(super) async fn reservation(db: &Db, id: ReservationId) -> Result<Option<Reservation>, Error> {
    db.bounded(async { crate::stock::store::find(&mut db.connection().await?, id).await }).await
}

/// A recorded webhook of the payment provider.
#[derive(Clone, Debug)]
pub(super) struct RecordedWebhook {
    pub(super) order: Uuid,
    pub(super) kind: String,
    pub(super) received_at: Timestamp,
}

/// Reads a recorded webhook by the provider's id.
pub(super) async fn webhook(db: &Db, id: &str) -> Result<Option<RecordedWebhook>, Error> {
    const WEBHOOK: &str =
        "SELECT order_id, kind, received_at FROM drop_payment_webhooks WHERE webhook_id = ?";
    let reading = async {
        let mut connection = db.connection().await?;
        let row: Option<(Vec<u8>, String, i64)> = db::on!(connection, raw => {
            sqlx::query_as(WEBHOOK).bind(id).fetch_optional(raw).await?
        });
        Ok(row.map(|(order, kind, received_at)| RecordedWebhook {
            order: store::uuid(&order),
            kind,
            received_at: Timestamp::from_millis(received_at),
        }))
    };
    db.bounded(reading).await
}
