//! The waiting room: players join, wait, are admitted, arrive and leave.
//!
//! # Invariants
//! - **Joins, arrivals, leaves and admissions are decided under the drop's head row.** Numbers become visible in their order, in whichever
//!   process. Without it an entry only ends: after the last purchase, or by erasure. Cycles lock the rows that they change.
//! - **SQL first, then the line.** A player in SQL who is missing from the line is admitted in turn all the same.
//! - **One entry per player and drop.** Joining again changes nothing while the player waits or is inside.
//!
//! # When something dies
//! - before the commit: nothing happened
//! - between the commit of a join and the line: the position is unknown until the player asks or the reconciler comes by; the place is kept
//! - between the commit of an admission and the line: the next cycle removes the player from the line

mod cycle;
mod desk;
mod metrics;
mod reconcile;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use account::{AccountId, UserId};
use base::Timestamp;
use runtime::batch::Batcher;
use runtime::fault;
use tokio::time::Instant;

use self::desk::{Desk, Request};
use crate::error::Error;
use crate::line::{Line, Position};
use crate::model::{DropRecord, DropState, Entry, EntryState, Measured};
use crate::service::Drops;
use crate::store::{self, Locked};
use crate::{AdmissionId, DropId};

pub use self::cycle::{Cycle, Ticked};
pub use desk::Facts;
pub use metrics::RoomMetrics;
pub use reconcile::Reconciled;

/// Each drop has one of so many batchers, which work on one batch at a time: joins of a process keep the order of their arrival, and a
/// busy drop delays few others.
const BATCHERS: usize = 8;
const TOGETHER: usize = 256;
/// How old the terms and the pace may be that a position is answered with.
const FRESH: Duration = Duration::from_secs(1);

/// The waiting rooms of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Room {
    rows: Rows,
    batchers: Arc<Vec<Batcher<Request, Result<Entry, Error>>>>,
    known: Arc<Mutex<HashMap<DropId, Known>>>,
}

/// What steps of the room work on.
#[derive(Clone, Debug)]
struct Rows {
    drops: Drops,
    line: Line,
    metrics: RoomMetrics,
}

/// What is remembered of a drop for a moment, so that a position costs one round trip.
#[derive(Clone, Debug)]
struct Known {
    read_at: Instant,
    drop: Arc<DropRecord>,
    measured: Measured,
}

/// Who wants to join, with what the caller knows of them.
#[derive(Clone, Debug)]
pub struct Join {
    pub user: UserId,
    /// The account that buys.
    pub account: AccountId,
    pub facts: Facts,
}

/// Where a player stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    NotJoined,
    Waiting(Waiting),
    Entered(Admission),
    Left,
    /// The admission has ended.
    Expired,
}

/// A player who waits. Each part is none while it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub position: Option<InLine>,
    /// How long it will take, at the present pace.
    pub wait: Option<Duration>,
}

/// A position in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InLine {
    /// How many are before the player.
    pub ahead: u64,
    /// How many wait in all.
    pub waiting: u64,
}

/// An admission that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub id: AdmissionId,
    pub drop: DropId,
    pub user: UserId,
    pub account: AccountId,
    pub expires_at: Timestamp,
    pub arrived_at: Option<Timestamp>,
}

impl Room {
    pub fn new(drops: Drops, line: Line, metrics: RoomMetrics) -> Self {
        let rows = Rows { drops, line, metrics };
        let batcher = |_| {
            let rows = rows.clone();
            Batcher::new(1, TOGETHER, move |requests: Vec<Request>| {
                let rows = rows.clone();
                async move { rows.apply_all(requests).await }
            })
        };
        let batchers = Arc::new((0..BATCHERS).map(batcher).collect());
        Self { rows, batchers, known: Arc::default() }
    }

    /// Puts a player at the end of the line. Changes nothing for a player who waits or is inside.
    pub async fn join(&self, drop: DropId, join: Join) -> Result<Entry, Error> {
        self.request(Request::Join { drop, join }).await
    }

    /// Takes a player out of the line, or out of the drop. Fails with [`Error::NotInLine`] if the player is in neither.
    pub async fn leave(&self, drop: DropId, user: UserId) -> Result<(), Error> {
        self.request(Request::Leave { drop, user }).await?;
        Ok(())
    }

    /// Notes that a player uses their admission, which lasts its full lifetime from then on. Fails with [`Error::NotAdmitted`] if
    /// this is not an admission of the player that is in force.
    pub async fn arrive(
        &self,
        drop: DropId,
        user: UserId,
        admission: AdmissionId,
    ) -> Result<Admission, Error> {
        let entry = self.request(Request::Arrive { drop, user, admission }).await?;
        Admission::of(drop, &entry).ok_or(Error::NotAdmitted)
    }

    async fn request(&self, request: Request) -> Result<Entry, Error> {
        // A drop's id is random in its low bits.
        let batcher = (request.drop().as_uuid().as_u128() % BATCHERS as u128) as usize;
        self.batchers[batcher].run(request).await.unwrap_or(Err(Error::NoAnswer))
    }

    /// Returns where a player stands. For one who waits that is one round trip to the line.
    pub async fn standing(&self, drop: DropId, user: UserId) -> Result<Standing, Error> {
        let known = self.known(drop).await?;
        let position = match self.rows.line.position(drop, user).await {
            Ok(Position::Waiting { ahead, waiting }) => {
                return Ok(Standing::Waiting(known.waiting(Some(InLine { ahead, waiting }))));
            }
            Ok(position) => position,
            Err(error) => {
                self.rows.line_failed("read", drop, &error);
                Position::Unknown
            }
        };
        let Rows { drops: Drops { db, .. }, line, .. } = &self.rows;
        let reading = async { store::entry(db, &mut db.connection().await?, drop, user).await };
        let Some(entry) = db.bounded(reading).await? else { return Ok(Standing::NotJoined) };
        Ok(match entry.state {
            EntryState::Waiting => {
                // Killed between the commit of the join and the line, or just between the two.
                if position == Position::Absent
                    && let Err(error) = line.add(drop, &[entry.spot()]).await
                {
                    self.rows.line_failed("add", drop, &error);
                }
                Standing::Waiting(known.waiting(None))
            }
            EntryState::Entered => Admission::of(drop, &entry).map_or(Standing::Expired, Standing::Entered),
            EntryState::Left => Standing::Left,
            EntryState::Expired => Standing::Expired,
        })
    }

    /// Returns a drop as it was at most [`FRESH`] ago.
    async fn known(&self, id: DropId) -> Result<Known, Error> {
        let fresh = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&id).filter(|known| known.read_at.elapsed() < FRESH).cloned()
        };
        if let Some(known) = fresh {
            return Ok(known);
        }
        let db = &self.rows.drops.db;
        let read_at = Instant::now();
        let reading = async {
            let mut connection = db.connection().await?;
            let drop = store::get(db, &mut connection, id).await?.ok_or(Error::NoSuchDrop(id))?;
            Ok::<_, Error>((drop, store::measured(db, &mut connection, id).await?))
        };
        let (drop, measured) = db.bounded(reading).await?;
        let fresh = Known { read_at, drop: Arc::new(drop), measured };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Only drops that exist are remembered, and none for long.
        known.retain(|_, known| known.read_at.elapsed() < FRESH);
        known.insert(id, fresh.clone());
        Ok(fresh)
    }
}

impl Known {
    fn waiting(&self, position: Option<InLine>) -> Waiting {
        let is_moving = self.drop.state == DropState::Open && !self.drop.everyone_waits;
        let wait = position.filter(|_| is_moving).and_then(|at| self.measured.wait_behind(at.ahead));
        Waiting { position, wait }
    }
}

impl Admission {
    fn of(drop: DropId, entry: &Entry) -> Option<Self> {
        let Entry { user, account, admission: id, arrived_at, .. } = *entry;
        let expires_at = entry.expires_at.filter(|_| entry.state == EntryState::Entered)?;
        Some(Self { id, drop, user, account, expires_at, arrived_at })
    }
}

impl Rows {
    /// Applies requests of several drops, those of one drop in one transaction and in their order.
    async fn apply_all(&self, requests: Vec<Request>) -> Vec<Result<Entry, Error>> {
        let mut of_drops: Vec<(DropId, Vec<usize>)> = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            match of_drops.iter_mut().find(|(drop, _)| *drop == request.drop()) {
                Some((_, of_drop)) => of_drop.push(at),
                None => of_drops.push((request.drop(), vec![at])),
            }
        }
        let mut answers: Vec<Result<Entry, Error>> = requests.iter().map(|_| Err(Error::NoAnswer)).collect();
        for (drop, of_drop) in of_drops {
            let those: Vec<&Request> = of_drop.iter().map(|at| &requests[*at]).collect();
            match db::retrying(Error::is_conflict, || self.apply(drop, &those)).await {
                Ok(done) => of_drop.iter().zip(done).for_each(|(at, answer)| answers[*at] = answer),
                Err(error) => {
                    let shared = Arc::new(error);
                    of_drop.iter().for_each(|at| answers[*at] = Err(Error::Batch(shared.clone())));
                }
            }
        }
        answers
    }

    async fn apply(&self, drop: DropId, requests: &[&Request]) -> Result<Vec<Result<Entry, Error>>, Error> {
        let db = &self.drops.db;
        let mut users: Vec<UserId> = requests.iter().map(|request| request.user()).collect();
        users.sort_unstable();
        users.dedup();
        let mut tx = db.begin().await?;
        let reading = async {
            let Some(locked) = store::lock(db, &mut tx, drop).await? else { return Ok(None) };
            let entries = store::find(db, &mut tx, drop, &users).await?;
            Ok::<_, db::Error>(Some((locked, entries, store::now(&mut tx).await?)))
        };
        let Some((Locked { drop: record, mut head }, entries, now)) = db.bounded(reading).await? else {
            return Ok(requests.iter().map(|_| Err(Error::NoSuchDrop(drop))).collect());
        };
        let mut desk = Desk::new(&record, head.joined, entries, now);
        let answers = requests.iter().map(|request| desk.decide(request)).collect();
        let decided = desk.decided();
        if decided.changed.is_empty() {
            tx.rollback().await?;
            return Ok(answers);
        }
        let joins = decided.joined - head.joined;
        head.joined = decided.joined;
        let writing = async {
            store::replace(&mut tx, drop, &decided.changed).await?;
            store::save_head(&mut tx, drop, &head).await
        };
        db.bounded(writing).await?;
        fault::point("drops.join.uncommitted");
        tx.commit().await?;
        fault::point("drops.join.committed");
        self.metrics.joined(joins);
        self.copy_to_line(drop, &decided).await;
        Ok(answers)
    }

    /// Brings the line up to what was committed. The reconciler does what fails here.
    async fn copy_to_line(&self, drop: DropId, decided: &desk::Decided) {
        if let Err(error) = self.line.remove(drop, &decided.gone).await {
            self.line_failed("remove", drop, &error);
        }
        if decided.waiting.is_empty() {
            return;
        }
        if let Err(error) = self.line.add(drop, &decided.waiting).await {
            self.line_failed("add", drop, &error);
        }
    }

    fn line_failed(&self, step: &'static str, drop: DropId, error: &(dyn std::error::Error + 'static)) {
        self.metrics.line_failed(step);
        tracing::warn!(%drop, step, cause = base::error::chain(error), "the line is not up to date");
    }
}
