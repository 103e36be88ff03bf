//! The stock of a drop: reserve, release, expire, adjust, audit.
//!
//! # Invariants
//! - `initial + adjusted = available + reserved + sold`, and no count is ever negative. A CHECK constraint enforces it, too.
//! - Every change of the counts has a ledger entry, in the same transaction. Each such transaction locks the stock's row and increments its
//!   version.
//! - **Reserves are batched.** Concurrent reserves of one drop are decided in one transaction, in their order of arrival, each with its own
//!   result: one row lock and one commit for all of them (ADR 18).
//! - A reservation is HELD until it ends, and it ends once. It expires by the database's clock.
//! - **Lock order: orders and reservations, then the stock's row, then entries.** It applies to a reserve, to a purchase after which the
//!   player leaves because of the limit, and to an erasure.
//! - **A reserve is an arrival**: the player has used the admission, which then lasts its full lifetime.
//!
//! # Failure modes
//! A reserve whose commit is not acknowledged may have happened: repeat it with the same idempotency key to get its result. A process that
//! dies holds no units: an uncommitted reserve did not happen, and a committed one expires.

mod audit;
mod feed;
mod metrics;
mod model;
mod publish;
mod reserve;
mod snapshot;
pub(crate) mod store;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use account::UserId;
use db::{Db, IdempotencyKey, KeyLookup, RequestFingerprint, Tx};
use runtime::batch::Batcher;
use runtime::fault;

use self::reserve::PendingReserve;
use self::store::LockedStock;
use crate::check;
use crate::error::Error;
use crate::{DropId, ReservationId};

pub use audit::{Audit, Difference};
pub use feed::{StockFeed, StockWatch};
pub use metrics::StockMetrics;
pub use model::{
    Deltas, LedgerEntry, LedgerKind, LedgerPosition, Levels, MAX_UNITS, Reservation, ReservationState,
    VerifiedAdmission,
};
pub(crate) use model::{Movement, Sale};
pub use publish::{LiveOptions, StockPublisher};
pub use snapshot::{Snapshot, StockChanged};

/// How many batchers share the drops, so that a hot drop does not delay the others.
const BATCHERS: usize = 16;
/// How many reserves share a transaction at most. Larger groups gain little, and the size of a packet to the server is limited.
const MAX_GROUP: usize = 256;

const MAX_ACTOR: usize = 100;
const MAX_REASON: usize = 500;
/// How many reservations or ledger entries one page lists at most.
const MAX_LIST: u32 = 1_000;
/// How many reservations one transaction expires at most.
const MAX_EXPIRE: u32 = 1_000;

/// Called with the counts after a commit that changed them. It must not block.
type StockObserver = Arc<dyn Fn(DropId, Levels) + Send + Sync>;

/// The stocks of all drops. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Stock {
    db: Db,
    batchers: Arc<[Batcher<PendingReserve, Result<Reservation, Error>>]>,
    observers: Arc<RwLock<Vec<StockObserver>>>,
}

impl Stock {
    pub fn new(db: Db) -> Self {
        let observers: Arc<RwLock<Vec<StockObserver>>> = Arc::default();
        let batcher = |_| {
            let reserver = reserve::Reserver { db: db.clone(), observers: observers.clone() };
            // One lane: groups are decided in the order in which their requests arrived.
            Batcher::new(1, MAX_GROUP, move |requests| {
                let reserver = reserver.clone();
                async move { reserver.reserve_all(requests).await }
            })
        };
        let batchers = (0..BATCHERS).map(batcher).collect();
        Self { db, batchers, observers }
    }

    /// Calls `observer` after every commit of this process that changes a stock.
    pub fn on_change(&self, observer: impl Fn(DropId, Levels) + Send + Sync + 'static) {
        self.observers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(observer));
    }

    /// Creates the stock of a new drop in the transaction that creates the drop.
    pub fn create_in(&self, tx: &mut Tx, drop: DropId, units: i64) -> Result<(), Error> {
        create_in(tx, drop, units, None)
    }

    /// Reserves units for an admission player, once per user and idempotency key. A repeated request gets the recorded response.
    ///
    /// Fails without effect if the player is not inside, if too few units are available, if the player would exceed the limit, or if the
    /// drop is not open.
    pub async fn reserve(
        &self,
        admission: VerifiedAdmission,
        quantity: i64,
        key: &str,
    ) -> Result<Reservation, Error> {
        let request = PendingReserve::new(admission, quantity, key)?;
        let batcher = admission.drop.as_uuid().as_u128() % BATCHERS as u128;
        self.batchers[batcher as usize].run(request).await.unwrap_or(Err(Error::NoBatchResult))
    }

    /// Releases a user's reservation. Changes nothing if it was released before or has expired.
    pub async fn release(&self, user: UserId, id: ReservationId) -> Result<Reservation, Error> {
        db::retry_conflicts(Error::is_conflict, || self.db.bounded(self.try_release(user, id))).await
    }

    async fn try_release(&self, user: UserId, id: ReservationId) -> Result<Reservation, Error> {
        let mut tx = self.db.begin().await?;
        let found = store::lock(&mut tx, id).await?.filter(|(found, _)| found.user == user);
        let (mut reservation, _) = found.ok_or(Error::UnknownReservation(id))?;
        match reservation.state {
            ReservationState::Released | ReservationState::Expired => return Ok(reservation),
            ReservationState::Confirmed => return Err(Error::AlreadyPaid(id)),
            ReservationState::Held => {}
        }
        self.release_in(&mut tx, &reservation).await?;
        fault::point("drops.release.uncommitted");
        tx.commit().await?;
        fault::point("drops.release.committed");
        reservation.state = ReservationState::Released;
        Ok(reservation)
    }

    /// Releases a held reservation whose row the transaction holds.
    pub(crate) async fn release_in(&self, tx: &mut Tx, reservation: &Reservation) -> Result<(), Error> {
        store::end(tx, &[reservation.id], ReservationState::Released).await?;
        let movement = Movement::Release(reservation.quantity);
        self.move_in(tx, reservation.drop, movement, Some(reservation.id)).await
    }

    /// Expires up to `limit` due reservations, at most 1,000. Returns how many. Any number of processes may do this at once.
    pub async fn expire(&self, limit: u32) -> Result<usize, Error> {
        let limit = limit.clamp(1, MAX_EXPIRE);
        db::retry_conflicts(Error::is_conflict, || self.db.bounded(self.try_expire(limit))).await
    }

    async fn try_expire(&self, limit: u32) -> Result<usize, Error> {
        let mut tx = self.db.begin().await?;
        let mut due = store::lock_expired(&mut tx, limit).await?;
        if due.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        // Stocks are locked in the order of their ids, so that two processes cannot deadlock.
        due.sort_by_key(|reservation| (reservation.drop, reservation.id));
        let ids: Vec<ReservationId> = due.iter().map(|reservation| reservation.id).collect();
        store::end(&mut tx, &ids, ReservationState::Expired).await?;
        for of_drop in due.chunk_by(|one, next| one.drop == next.drop) {
            let drop = of_drop[0].drop;
            let mut stock = lock(&mut tx, drop).await?;
            for reservation in of_drop {
                require_moved(
                    stock.move_units(Movement::Expire(reservation.quantity), Some(reservation.id)),
                    drop,
                )?;
            }
            self.save(&mut tx, drop, stock);
        }
        fault::point("drops.expire.uncommitted");
        tx.commit().await?;
        fault::point("drops.expire.committed");
        Ok(due.len())
    }

    /// Adds units to a stock or removes available ones, once per actor and idempotency key. Returns the counts afterwards.
    pub async fn adjust(&self, drop: DropId, adjustment: &Adjustment) -> Result<Levels, Error> {
        let Adjustment { by, actor, reason, key } = adjustment;
        check::text("actor", actor, MAX_ACTOR)?;
        check::text("reason", reason, MAX_REASON)?;
        if *by == 0 || !(-MAX_UNITS..=MAX_UNITS).contains(by) {
            let what = format!("must be 1 to {MAX_UNITS} or -1 to -{MAX_UNITS}, not {by}");
            return Err(Error::Invalid { field: "by", what });
        }
        let request = RequestFingerprint::new("drops.adjust").id(drop.as_uuid()).integer(*by).text(reason);
        let key = IdempotencyKey::new(&format!("drops.adjust/{actor}"), key, request)?;
        db::retry_conflicts(Error::is_conflict, || self.db.bounded(self.try_adjust(drop, adjustment, &key)))
            .await
    }

    async fn try_adjust(
        &self,
        drop: DropId,
        Adjustment { by, actor, reason, .. }: &Adjustment,
        key: &IdempotencyKey,
    ) -> Result<Levels, Error> {
        let mut tx = self.db.begin().await?;
        let mut stock = lock(&mut tx, drop).await?;
        if let Some(answer) = recorded_response(&self.db, key, key.look_up(&mut tx).await?)? {
            return Ok(answer);
        }
        let before = stock.levels();
        if before.total() + by > MAX_UNITS {
            return Err(Error::Invalid {
                field: "by",
                what: format!("must not bring the stock above {MAX_UNITS} units"),
            });
        }
        let note = store::LedgerNote { actor: actor.clone(), reason: Some(reason.clone()) };
        if !stock.adjust(*by, note) {
            return Err(Error::StockInUse { available: before.available });
        }
        let after = self.save(&mut tx, drop, stock);
        key.record(&mut tx, drop.as_uuid(), &serde_json::to_string(&after)?);
        fault::point("drops.adjust.uncommitted");
        tx.commit().await?;
        fault::point("drops.adjust.committed");
        Ok(after)
    }

    /// Reads the counts of a stock.
    pub async fn levels(&self, drop: DropId) -> Result<Levels, Error> {
        let reading = async { Ok::<_, Error>(store::levels(&mut self.db.connection().await?, drop).await?) };
        self.db.bounded(reading).await?.ok_or(Error::NoSuchDrop(drop))
    }

    /// Reads the snapshot of a stock, as watchers see it.
    pub async fn snapshot(&self, drop: DropId) -> Result<Snapshot, Error> {
        Ok(Snapshot::new(drop, self.levels(drop).await?))
    }

    /// Reads the snapshots of several stocks in one query, in the order of `drops`. Omits drops that do not exist.
    pub async fn snapshots(&self, drops: &[DropId]) -> Result<Vec<Snapshot>, Error> {
        if drops.is_empty() {
            return Ok(Vec::new());
        }
        let reading =
            async { Ok::<_, Error>(store::levels_of(&mut self.db.connection().await?, drops).await?) };
        let found: HashMap<DropId, Levels> = self.db.bounded(reading).await?.into_iter().collect();
        Ok(drops.iter().filter_map(|drop| Some(Snapshot::new(*drop, *found.get(drop)?))).collect())
    }

    /// Reads a user's reservation.
    pub async fn reservation(&self, user: UserId, id: ReservationId) -> Result<Reservation, Error> {
        let reading = async { Ok::<_, Error>(store::find(&mut self.db.connection().await?, id).await?) };
        let found = self.db.bounded(reading).await?.filter(|found| found.user == user);
        found.ok_or(Error::UnknownReservation(id))
    }

    /// Lists a user's held reservations that have not expired, over all drops, the oldest first.
    pub async fn held(&self, user: UserId, limit: u32) -> Result<Vec<Reservation>, Error> {
        let limit = limit.clamp(1, MAX_LIST);
        Ok(self.db.bounded(store::held_by_user(&self.db, user, limit)).await?)
    }

    /// Lists the ledger of a stock, the newest entry first: from the start, or the entries before `before`.
    pub async fn ledger(
        &self,
        drop: DropId,
        before: Option<LedgerPosition>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, Error> {
        let limit = limit.clamp(1, base::page::rows_to_read(MAX_LIST));
        let reading =
            async { Ok(store::ledger(&mut self.db.connection().await?, drop, before, limit).await?) };
        self.db.bounded(reading).await
    }

    /// Compares the counts of a stock with the sums of its ledger, its reservations and its orders. It reads one consistent state of the
    /// database, so it is correct while the drop is selling, too.
    pub async fn audit(&self, drop: DropId) -> Result<Audit, Error> {
        let reading = async { Ok::<_, Error>(store::sums(&mut self.db.connection().await?, drop).await?) };
        Ok(self.db.bounded(reading).await?.ok_or(Error::NoSuchDrop(drop))?.audit())
    }

    /// Locks a stock and moves its units. The transaction must not have locked the stock before.
    pub(crate) async fn move_in(
        &self,
        tx: &mut Tx,
        drop: DropId,
        movement: Movement,
        reservation: Option<ReservationId>,
    ) -> Result<(), Error> {
        let mut stock = lock(tx, drop).await?;
        require_moved(stock.move_units(movement, reservation), drop)?;
        self.save(tx, drop, stock);
        Ok(())
    }

    /// Writes a stock at the commit. Listeners are called after it.
    pub(crate) fn save(&self, tx: &mut Tx, drop: DropId, stock: LockedStock) -> Levels {
        save(&self.observers, tx, drop, stock)
    }
}

/// A change of a stock by an operator.
#[derive(Clone, Debug)]
pub struct Adjustment {
    /// How many units are added, or removed if negative.
    pub by: i64,
    pub actor: String,
    pub reason: String,
    /// The idempotency key.
    pub key: String,
}

impl fmt::Debug for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stock").field("db", &self.db).finish_non_exhaustive()
    }
}

/// Creates the stock of a new drop at the commit, with the first entry of its ledger.
pub(crate) fn create_in(tx: &mut Tx, drop: DropId, units: i64, actor: Option<&str>) -> Result<(), Error> {
    check::units("stock", units)?;
    let note = actor.map(|actor| store::LedgerNote { actor: actor.to_owned(), reason: None });
    let mut stock = LockedStock::new(drop);
    require_moved(stock.create(units, note), drop)?;
    // No observer call: a new stock has no watchers.
    let _levels = stock.save(tx);
    Ok(())
}

/// Locks the stock of a drop. Fails with [`Error::NoSuchDrop`] if there is none.
pub(crate) async fn lock(tx: &mut Tx, drop: DropId) -> Result<LockedStock, Error> {
    LockedStock::lock(tx, drop).await?.ok_or(Error::NoSuchDrop(drop))
}

fn save(
    observers: &Arc<RwLock<Vec<StockObserver>>>,
    tx: &mut Tx,
    drop: DropId,
    stock: LockedStock,
) -> Levels {
    let levels = stock.save(tx);
    let observers = observers.clone();
    tx.after_commit(move || {
        let observers = observers.read().unwrap_or_else(PoisonError::into_inner);
        observers.iter().for_each(|observer| observer(drop, levels));
    });
    levels
}

/// Fails if a movement was impossible. The rows then contradict the counts: another program has written to the tables.
pub(crate) fn require_moved(is_moved: bool, drop: DropId) -> Result<(), Error> {
    if is_moved {
        return Ok(());
    }
    let cause = "its counts contradict its reservations; run `playhouse drops audit`".to_owned();
    Err(db::Error::Corrupt { table: "drop_stock", row: drop.to_string(), cause }.into())
}

/// Reads the answer to an earlier request under the same key.
fn recorded_response<T: serde::de::DeserializeOwned>(
    db: &Db,
    key: &IdempotencyKey,
    earlier: KeyLookup,
) -> Result<Option<T>, Error> {
    match earlier {
        KeyLookup::New => Ok(None),
        KeyLookup::OtherRequest(_) => Err(Error::KeyReused),
        KeyLookup::Unreadable(cause) => Err(db.corrupt("idempotency_keys", key.row(), cause).into()),
        KeyLookup::RecordedResponse(text) => {
            let corrupt =
                |cause: serde_json::Error| db.corrupt("idempotency_keys", key.row(), cause.to_string());
            Ok(Some(serde_json::from_str(&text).map_err(corrupt)?))
        }
    }
}
