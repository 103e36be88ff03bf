//! The stock of a drop: reserve, release, expire, adjust, audit.
//!
//! # Invariants
//! - `initial + adjusted = available + reserved + sold`, and none of the counts is ever negative. A CHECK of the table says so, too.
//! - Every change of the counts has an entry in the ledger, in the same transaction. Each transaction that changes them holds the stock's
//!   row and counts its version up by one.
//! - **Reserves are grouped.** Those of one drop that arrive together are decided in one transaction, in the order of their arrival,
//!   each with an answer of its own: one row lock and one commit for all of them (ADR 18).
//! - A reservation is HELD until it ends, once. Its time is the database's.
//! - The stock's row is the last one that a transaction locks; reserves lock nothing else. So they cannot deadlock.
//!
//! # Failure modes
//! A reserve whose commit is not acknowledged may have been done: the same request under the same key tells. A process that dies holds no
//! unit: what was not committed did not happen, and what was committed expires.

mod audit;
mod model;
mod reserve;
pub(crate) mod store;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use account::UserId;
use db::{Db, Earlier, Fingerprint, IdempotencyKey, Tx};
use runtime::batch::Batcher;
use runtime::fault;

use self::reserve::Request;
use self::store::LockedStock;
use crate::error::Error;
use crate::{DropId, ReservationId};

pub use audit::{Audit, Difference};
pub use model::{Admitted, Deltas, Kind, LedgerEntry, Levels, MAX_UNITS, Reservation, ReservationState};
pub(crate) use model::{Movement, Sale};

/// How many lines reserves wait in: each drop has one of them, so that a hot drop does not hold up the others.
const LINES: usize = 16;
/// How many reserves share a transaction at most. Larger groups gain little, and what one message may hold is limited.
const TOGETHER: usize = 256;

const MAX_ACTOR: usize = 100;
const MAX_REASON: usize = 500;

/// Called with the counts after a commit that changed them. It must not take time.
type Listener = Arc<dyn Fn(DropId, Levels) + Send + Sync>;

/// The stocks of all drops. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Stock {
    db: Db,
    lines: Arc<[Batcher<Request, Result<Reservation, Error>>]>,
    listeners: Arc<RwLock<Vec<Listener>>>,
}

impl Stock {
    pub fn new(db: Db) -> Self {
        let listeners: Arc<RwLock<Vec<Listener>>> = Arc::default();
        let line = |_| {
            let reserver = reserve::Reserver { db: db.clone(), listeners: listeners.clone() };
            // One lane: the order in which groups are decided is the order in which their requests arrived.
            Batcher::new(1, TOGETHER, move |requests| {
                let reserver = reserver.clone();
                async move { reserver.reserve_all(requests).await }
            })
        };
        let lines = (0..LINES).map(line).collect();
        Self { db, lines, listeners }
    }

    /// Calls `listener` after every commit of this process that changes a stock.
    pub fn on_change(&self, listener: impl Fn(DropId, Levels) + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(listener));
    }

    /// Creates the stock of a new drop in the transaction that creates the drop.
    pub fn create_in(&self, tx: &mut Tx, drop: DropId, units: i64) -> Result<(), Error> {
        if !(0..=MAX_UNITS).contains(&units) {
            return Err(Error::Invalid { field: "stock", what: format!("is 0 to {MAX_UNITS}, not {units}") });
        }
        let mut stock = LockedStock::new(drop);
        if !stock.move_units(Movement::Create(units), None) {
            return Err(Error::NoAnswer);
        }
        self.save(tx, drop, stock);
        Ok(())
    }

    /// Reserves units for an admitted player, once per user and key. A repeated request gets the first answer.
    ///
    /// Refused without effect: a player who is not inside, more units than there are or than a player may have, a drop that is not open.
    pub async fn reserve(&self, admitted: Admitted, quantity: i64, key: &str) -> Result<Reservation, Error> {
        let request = Request::new(admitted, quantity, key)?;
        let line = admitted.drop.as_uuid().as_u128() % LINES as u128;
        self.lines[line as usize].run(request).await.unwrap_or(Err(Error::NoAnswer))
    }

    /// Releases a reservation of a user. One that was released before, or has expired, stays as it is.
    pub async fn release(&self, user: UserId, id: ReservationId) -> Result<Reservation, Error> {
        db::retrying(Error::is_conflict, || self.db.bounded(self.try_release(user, id))).await
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

    /// Ends up to `limit` reservations whose time has ended, and returns how many. Any number of processes may do so at once.
    pub async fn expire(&self, limit: u32) -> Result<usize, Error> {
        db::retrying(Error::is_conflict, || self.db.bounded(self.try_expire(limit))).await
    }

    async fn try_expire(&self, limit: u32) -> Result<usize, Error> {
        let mut tx = self.db.begin().await?;
        let mut due = store::due(&mut tx, limit).await?;
        if due.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        // Stocks are locked in one order, so that two processes cannot wait for each other.
        due.sort_by_key(|reservation| (reservation.drop, reservation.id));
        let ids: Vec<ReservationId> = due.iter().map(|reservation| reservation.id).collect();
        store::end(&mut tx, &ids, ReservationState::Expired).await?;
        for of_drop in due.chunk_by(|one, next| one.drop == next.drop) {
            let drop = of_drop[0].drop;
            let mut stock = lock(&mut tx, drop).await?;
            for reservation in of_drop {
                require(
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

    /// Adds units to a stock, or takes available ones away, once per actor and key. Returns the counts after it.
    pub async fn adjust(&self, drop: DropId, adjustment: &Adjustment) -> Result<Levels, Error> {
        let Adjustment { by, actor, reason, key } = adjustment;
        check_text("actor", actor, MAX_ACTOR)?;
        check_text("reason", reason, MAX_REASON)?;
        if *by == 0 || !(-MAX_UNITS..=MAX_UNITS).contains(by) {
            let what = format!("is 1 to {MAX_UNITS} or -1 to -{MAX_UNITS}, not {by}");
            return Err(Error::Invalid { field: "by", what });
        }
        let request = Fingerprint::of("drops.adjust").id(drop.as_uuid()).integer(*by).text(reason);
        let key = IdempotencyKey::new(&format!("drops.adjust/{actor}"), key, request)?;
        db::retrying(Error::is_conflict, || self.db.bounded(self.try_adjust(drop, adjustment, &key))).await
    }

    async fn try_adjust(
        &self,
        drop: DropId,
        Adjustment { by, actor, reason, .. }: &Adjustment,
        key: &IdempotencyKey,
    ) -> Result<Levels, Error> {
        let mut tx = self.db.begin().await?;
        let mut stock = lock(&mut tx, drop).await?;
        if let Some(answer) = earlier(&self.db, key, key.earlier(&mut tx).await?)? {
            return Ok(answer);
        }
        let before = stock.levels();
        if before.total() + by > MAX_UNITS {
            return Err(Error::Invalid { field: "by", what: format!("makes more than {MAX_UNITS} units") });
        }
        let note = store::Note { actor: actor.clone(), reason: reason.clone() };
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

    /// Reads a reservation of a user.
    pub async fn reservation(&self, user: UserId, id: ReservationId) -> Result<Reservation, Error> {
        let reading = async { Ok::<_, Error>(store::find(&mut self.db.connection().await?, id).await?) };
        let found = self.db.bounded(reading).await?.filter(|found| found.user == user);
        found.ok_or(Error::UnknownReservation(id))
    }

    /// Lists what is held for a user, the oldest first.
    pub async fn held(&self, user: UserId, limit: u32) -> Result<Vec<Reservation>, Error> {
        let reading = async { Ok(store::open_of_user(&mut self.db.connection().await?, user, limit).await?) };
        self.db.bounded(reading).await
    }

    /// Lists the ledger of a stock, the newest entry first, from before a version.
    pub async fn ledger(&self, drop: DropId, before: i64, limit: u32) -> Result<Vec<LedgerEntry>, Error> {
        let reading =
            async { Ok(store::ledger(&mut self.db.connection().await?, drop, before, limit).await?) };
        self.db.bounded(reading).await
    }

    /// Compares the counts of a stock with the sums of its ledger, its reservations and its orders. It sees one state of the database, so it
    /// is right also while the drop is under way.
    pub async fn audit(&self, drop: DropId) -> Result<Audit, Error> {
        let reading = async { Ok::<_, Error>(store::sums(&mut self.db.connection().await?, drop).await?) };
        Ok(self.db.bounded(reading).await?.ok_or(Error::NoSuchDrop(drop))?.audit())
    }

    /// Moves units of a stock that this transaction has not locked before.
    pub(crate) async fn move_in(
        &self,
        tx: &mut Tx,
        drop: DropId,
        movement: Movement,
        reservation: Option<ReservationId>,
    ) -> Result<(), Error> {
        let mut stock = lock(tx, drop).await?;
        require(stock.move_units(movement, reservation), drop)?;
        self.save(tx, drop, stock);
        Ok(())
    }

    /// Writes a stock at the commit, after which listeners are called.
    pub(crate) fn save(&self, tx: &mut Tx, drop: DropId, stock: LockedStock) -> Levels {
        save(&self.listeners, tx, drop, stock)
    }
}

/// What an operator changes of a stock.
#[derive(Clone, Debug)]
pub struct Adjustment {
    /// How many units are added, or taken away if negative.
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

/// Locks the stock of a drop that must be there.
pub(crate) async fn lock(tx: &mut Tx, drop: DropId) -> Result<LockedStock, Error> {
    LockedStock::lock(tx, drop).await?.ok_or(Error::NoSuchDrop(drop))
}

fn save(listeners: &Arc<RwLock<Vec<Listener>>>, tx: &mut Tx, drop: DropId, stock: LockedStock) -> Levels {
    let levels = stock.save(tx);
    let listeners = listeners.clone();
    tx.after_commit(move || {
        let listeners = listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener(drop, levels));
    });
    levels
}

/// Fails if the rows contradict the counts: then somebody else has written to the tables.
pub(crate) fn require(is_moved: bool, drop: DropId) -> Result<(), Error> {
    if is_moved {
        return Ok(());
    }
    let cause = "its counts contradict its reservations; run the audit".to_owned();
    Err(db::Error::Corrupt { table: "drop_stock", row: drop.to_string(), cause }.into())
}

/// Reads the answer to an earlier request under the same key.
fn earlier<T: serde::de::DeserializeOwned>(
    db: &Db,
    key: &IdempotencyKey,
    earlier: Earlier,
) -> Result<Option<T>, Error> {
    match earlier {
        Earlier::Nothing => Ok(None),
        Earlier::OtherRequest(_) => Err(Error::KeyReused),
        Earlier::Unreadable(cause) => Err(db.corrupt("idempotency_keys", key.row(), cause).into()),
        Earlier::Answer(text) => {
            let corrupt =
                |cause: serde_json::Error| db.corrupt("idempotency_keys", key.row(), cause.to_string());
            Ok(Some(serde_json::from_str(&text).map_err(corrupt)?))
        }
    }
}

fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), Error> {
    let length = text.chars().count();
    if (1..=max).contains(&length) && text.trim() == text {
        return Ok(());
    }
    let what = format!("has 1 to {max} characters and no spaces around them");
    Err(Error::Invalid { field, what })
}
