//! The waiting room: players join, wait, are admitted, arrive and leave.
//!
//! # Invariants
//! - **Joins, arrivals, leaves and admissions are decided under the drop's head row.** Numbers become visible in their order, in whichever
//!   process. Without it an entry only ends: after the last purchase. Cycles lock the rows that they change.
//! - **SQL first, then the line.** A player in SQL who is missing from the line is admitted in turn all the same.
//! - **One entry per player and drop.** Joining again changes nothing while the player waits or is inside. A player whose admission
//!   has ended joins at the end of the line.
//! - **Joins do not wait for Redis** longer than a moment, and no transaction waits for it at all.
//!
//! # When something dies
//! - before the commit: nothing happened
//! - between the commit of a join and the line: the position is unknown until the player asks or the reconciler comes by; the place is kept
//! - between the commit of an admission and the line: the next cycle removes the player from the line

mod copier;
mod cycle;
mod desk;
mod ending;
mod filler;
mod metrics;
mod reconcile;
mod standing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use account::{AccountId, UserId};
use base::Timestamp;
use base::error::Coded;
use runtime::batch::Batcher;
use runtime::fault;

use self::copier::{Copier, LineChange};
use self::desk::{Desk, Request, Situation};
use self::filler::Filler;
use self::standing::Known;
use crate::error::Error;
use crate::event::AdmissionEvent;
use crate::line::Line;
use crate::model::{Entry, EntryState};
use crate::service::Drops;
use crate::store::{self, Locked};
use crate::{AdmissionId, DropId};

pub use self::cycle::{Cycle, Ticked};
pub use desk::Facts;
pub use metrics::RoomMetrics;
pub use reconcile::Reconciled;
pub use standing::{InLine, PlayerPlace, Standing, Waiting};

/// Each drop has one of so many batchers, which work on one batch at a time: joins of a process keep the order of their arrival, and a
/// busy drop delays few others.
const BATCHERS: usize = 8;
const TOGETHER: usize = 256;
/// How long a step outside of transactions waits for the line. A Redis that is silent for longer is taken to be away.
const LINE_WITHIN: Duration = Duration::from_secs(1);

/// The waiting rooms of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Room {
    rows: Rows,
    batchers: Arc<Vec<Batcher<Request, Result<Entry, Error>>>>,
    fillers: Arc<Vec<Filler>>,
    known: Arc<Mutex<HashMap<DropId, Known>>>,
}

/// What steps of the room work on.
#[derive(Clone, Debug)]
struct Rows {
    drops: Drops,
    line: Line,
    copiers: Arc<Vec<Copier>>,
    /// Up to when the admissions of each drop were removed from the line by this process.
    swept: Arc<Mutex<HashMap<DropId, Timestamp>>>,
    metrics: RoomMetrics,
}

/// Who wants to join, with what the caller knows of them.
#[derive(Clone, Debug)]
pub struct Join {
    pub user: UserId,
    /// The account that buys.
    pub account: AccountId,
    pub facts: Facts,
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
        let copier = |_| Copier::new(line.clone(), metrics.clone());
        let copiers = Arc::new((0..BATCHERS).map(copier).collect());
        let rows = Rows { drops, line, copiers, swept: Arc::default(), metrics };
        let batcher = |_| {
            let rows = rows.clone();
            Batcher::new(1, TOGETHER, move |requests: Vec<Request>| {
                let rows = rows.clone();
                async move { rows.apply_all(requests).await }
            })
        };
        let batchers = Arc::new((0..BATCHERS).map(batcher).collect());
        let fillers = Arc::new((0..BATCHERS).map(|_| Filler::new(rows.clone())).collect());
        Self { rows, batchers, fillers, known: Arc::default() }
    }

    /// Puts a player at the end of the line. Changes nothing for a player who waits or is inside. A player whose admission has ended joins
    /// again, even before a cycle has marked its end.
    pub async fn join(&self, drop: DropId, join: Join) -> Result<Entry, Error> {
        self.request(Request::Join { drop, join }).await
    }

    /// Takes a player out of the line, or out of the drop. Fails with [`Error::NotInLine`] if the player is in neither.
    pub async fn leave(&self, drop: DropId, user: UserId) -> Result<(), Error> {
        self.request(Request::Leave { drop, user }).await?;
        Ok(())
    }

    /// Notes that a player uses their admission. It lasts until `lifetime` after it was given, whenever the player arrives. Fails with
    /// [`Error::NotAdmitted`] if this is not an admission of the player that is in force.
    pub async fn arrive(
        &self,
        drop: DropId,
        user: UserId,
        admission: AdmissionId,
    ) -> Result<Admission, Error> {
        let entry = self.request(Request::Arrive { drop, user, admission }).await?;
        Admission::of(drop, &entry).ok_or(Error::NotAdmitted)
    }

    fn filler(&self, drop: DropId) -> &Filler {
        &self.fillers[batcher_of(drop)]
    }

    async fn request(&self, request: Request) -> Result<Entry, Error> {
        self.batchers[batcher_of(request.drop())].run(request).await.unwrap_or(Err(Error::NoAnswer))
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
            let (now, erased) = store::now_and_erased(&mut tx, &users).await?;
            let situation = Situation { joined: locked.head.joined, entries, erased, now };
            Ok::<_, db::Error>(Some((locked, situation)))
        };
        let Some((Locked { drop: record, mut head }, situation)) = db.bounded(reading).await? else {
            return Ok(requests.iter().map(|_| Err(Error::NoSuchDrop(drop))).collect());
        };
        let mut desk = Desk::new(&record, situation);
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
        self.append(&mut tx, AdmissionEvent::Expired, &record, &decided.expired).await?;
        fault::point("drops.join.uncommitted");
        tx.commit().await?;
        fault::point("drops.join.committed");
        self.metrics.joined(joins);
        let desk::Decided { gone, waiting, .. } = decided;
        if !gone.is_empty() || !waiting.is_empty() {
            self.copiers[batcher_of(drop)].copy(LineChange { drop, gone, waiting }).await;
        }
        Ok(answers)
    }

    /// Logs and counts a step of a loop that failed for one drop. The other drops have their turn all the same.
    fn failed(&self, step: &'static str, drop: DropId, error: &Error) {
        self.metrics.failed(step);
        let cause = base::error::chain(error);
        if error.is_passing() {
            tracing::warn!(outage = step, %drop, step, cause, "a step of a drop failed");
        } else {
            tracing::error!(%drop, step, cause, "a step of a drop failed");
        }
    }

    fn line_failed(&self, step: &'static str, drop: DropId, error: &(dyn std::error::Error + 'static)) {
        self.metrics.line_failed(step);
        tracing::warn!(outage = step, %drop, step, cause = base::error::chain(error), "the line is not up to date");
    }
}

/// Returns the batcher of a drop, whose id is random in its low bits.
fn batcher_of(drop: DropId) -> usize {
    (drop.as_uuid().as_u128() % BATCHERS as u128) as usize
}

/// Bounds a step on the line.
async fn within<T>(
    step: impl Future<Output = Result<T, redis_store::Error>>,
) -> Result<T, redis_store::Error> {
    let done = tokio::time::timeout(LINE_WITHIN, step).await;
    done.unwrap_or_else(|_| Err(redis_store::Error::silent()))
}
