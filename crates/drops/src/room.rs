//! The waiting room: players join, wait, are admitted, arrive and leave.
//!
//! # Invariants
//! - **Joins, arrivals, leaves and admissions are decided while the drop's head row is locked.** Join numbers become visible in order,
//!   whichever process assigns them. Only one change happens without the head lock: an entry ends after the player's last purchase.
//!   Cycles lock the rows that they change.
//! - **SQL first, then the line.** A player who is missing from the line is still admitted in turn.
//! - **One entry per player and drop.** Joining again changes nothing while the player waits or is inside. A player whose admission
//!   has expired joins at the end of the line.
//! - **Joins wait at most 100 ms for Redis**, and no transaction waits for it at all.
//!
//! # Crash points
//! - before the commit: nothing happened
//! - between the commit of a join and the line: the position is unknown until the player asks for it or the reconciler runs; the place is
//!   kept
//! - between the commit of an admission and the line: the next cycle removes the player from the line

mod copier;
mod cycle;
mod decide;
mod ending;
mod filler;
mod metrics;
mod reconcile;
mod status;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use account::{AccountId, UserId};
use base::Timestamp;
use base::error::Coded;
use runtime::batch::Batcher;
use runtime::fault;

use self::copier::{LineChange, LineCopier};
use self::decide::{Decider, DecisionInput, EntryChanges, RoomRequest};
use self::filler::LineFiller;
use self::status::CachedDrop;
use crate::error::Error;
use crate::event::AdmissionEventType;
use crate::line::Line;
use crate::model::{EntryState, LineEntry};
use crate::service::Drops;
use crate::store::{self, LockedDrop};
use crate::{AdmissionId, DropId};

pub use self::cycle::{CycleReport, TickReport};
pub use decide::Eligibility;
pub use metrics::RoomMetrics;
pub use reconcile::ReconcileReport;
pub use status::{PlayerDrop, PlayerStatus, WaitStatus};

/// How many batchers share the drops. Each works on one batch at a time, so the joins of a process keep their order of arrival, and a busy
/// drop delays few others.
const BATCHERS: usize = 8;
/// How many requests one transaction applies at most.
const MAX_GROUP: usize = 256;
/// How long an operation outside of transactions waits for the line. A Redis that is silent for longer counts as unreachable.
const LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The waiting rooms of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Room {
    inner: RoomInner,
    batchers: Arc<Vec<Batcher<RoomRequest, Result<LineEntry, Error>>>>,
    fillers: Arc<Vec<LineFiller>>,
    /// The drops that were read within the last second.
    cache: Arc<Mutex<HashMap<DropId, CachedDrop>>>,
}

/// What requests, cycles and the reconciler share.
#[derive(Clone, Debug)]
struct RoomInner {
    drops: Drops,
    line: Line,
    copiers: Arc<Vec<LineCopier>>,
    /// For each drop, the time up to which this process has removed admitted players from the line.
    swept_until: Arc<Mutex<HashMap<DropId, Timestamp>>>,
    metrics: RoomMetrics,
}

/// A request to join: the player and what makes them eligible.
#[derive(Clone, Debug)]
pub struct Join {
    pub user: UserId,
    /// The account that will own the units.
    pub account: AccountId,
    pub eligibility: Eligibility,
}

/// An admission that has not expired.
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
        let copier = |_| LineCopier::new(line.clone(), metrics.clone());
        let copiers = Arc::new((0..BATCHERS).map(copier).collect());
        let inner = RoomInner { drops, line, copiers, swept_until: Arc::default(), metrics };
        let batcher = |_| {
            let inner = inner.clone();
            Batcher::new(1, MAX_GROUP, move |requests: Vec<RoomRequest>| {
                let inner = inner.clone();
                async move { inner.apply_all(requests).await }
            })
        };
        let batchers = Arc::new((0..BATCHERS).map(batcher).collect());
        let fillers = Arc::new((0..BATCHERS).map(|_| LineFiller::new(inner.clone())).collect());
        Self { inner, batchers, fillers, cache: Arc::default() }
    }

    /// Puts a player at the end of the line. Changes nothing for a player who waits or is inside. A player whose admission has expired
    /// can join again, even before a cycle has marked it.
    pub async fn join(&self, drop: DropId, join: Join) -> Result<LineEntry, Error> {
        self.request(RoomRequest::Join { drop, join }).await
    }

    /// Removes a player from the line, or from the drop. Fails with [`Error::NotInLine`] if the player is in neither.
    pub async fn leave(&self, drop: DropId, user: UserId) -> Result<(), Error> {
        self.request(RoomRequest::Leave { drop, user }).await?;
        Ok(())
    }

    /// Records that a player uses their admission. It then lasts until `lifetime` after it was given, whenever the player arrives. Fails
    /// with [`Error::NotAdmitted`] if the player has no such admission or it has expired.
    pub async fn arrive(
        &self,
        drop: DropId,
        user: UserId,
        admission: AdmissionId,
    ) -> Result<Admission, Error> {
        let entry = self.request(RoomRequest::Arrive { drop, user, admission }).await?;
        Admission::from_entry(drop, &entry).ok_or(Error::NotAdmitted)
    }

    fn filler(&self, drop: DropId) -> &LineFiller {
        &self.fillers[batcher_of(drop)]
    }

    async fn request(&self, request: RoomRequest) -> Result<LineEntry, Error> {
        self.batchers[batcher_of(request.drop())].run(request).await.unwrap_or(Err(Error::NoBatchResult))
    }
}

impl Admission {
    fn from_entry(drop: DropId, entry: &LineEntry) -> Option<Self> {
        let LineEntry { user, account, admission: id, arrived_at, .. } = *entry;
        let expires_at = entry.expires_at.filter(|_| entry.state == EntryState::Entered)?;
        Some(Self { id, drop, user, account, expires_at, arrived_at })
    }
}

impl RoomInner {
    /// Applies requests for several drops: those for one drop in one transaction, in order.
    async fn apply_all(&self, requests: Vec<RoomRequest>) -> Vec<Result<LineEntry, Error>> {
        let mut by_drop: Vec<(DropId, Vec<usize>)> = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            match by_drop.iter_mut().find(|(drop, _)| *drop == request.drop()) {
                Some((_, indices)) => indices.push(at),
                None => by_drop.push((request.drop(), vec![at])),
            }
        }
        let mut answers: Vec<Result<LineEntry, Error>> =
            requests.iter().map(|_| Err(Error::NoBatchResult)).collect();
        for (drop, indices) in by_drop {
            let group: Vec<&RoomRequest> = indices.iter().map(|at| &requests[*at]).collect();
            match db::retry_conflicts(Error::is_conflict, || self.apply(drop, &group)).await {
                Ok(done) => indices.iter().zip(done).for_each(|(at, answer)| answers[*at] = answer),
                Err(error) => {
                    let shared = Arc::new(error);
                    indices.iter().for_each(|at| answers[*at] = Err(Error::Batch(shared.clone())));
                }
            }
        }
        answers
    }

    /// Applies requests for one drop in one transaction. Returns one result per request, in order.
    async fn apply(
        &self,
        drop: DropId,
        requests: &[&RoomRequest],
    ) -> Result<Vec<Result<LineEntry, Error>>, Error> {
        let db = &self.drops.db;
        let mut users: Vec<UserId> = requests.iter().map(|request| request.user()).collect();
        users.sort_unstable();
        users.dedup();
        let mut tx = db.begin().await?;
        let reading = async {
            let Some(locked) = store::lock(db, &mut tx, drop).await? else { return Ok(None) };
            let entries = store::lock_entries(db, &mut tx, drop, &users).await?;
            let (now, erased) = store::now_and_erased(&mut tx, &users).await?;
            let input = DecisionInput { joined: locked.head.joined, entries, erased, now };
            Ok::<_, db::Error>(Some((locked, input)))
        };
        let Some((LockedDrop { drop: record, mut head }, input)) = db.bounded(reading).await? else {
            return Ok(requests.iter().map(|_| Err(Error::NoSuchDrop(drop))).collect());
        };
        let mut decider = Decider::new(&record, input);
        let answers = requests.iter().map(|request| decider.decide(request)).collect();
        let changes = decider.into_changes();
        if changes.entries.is_empty() {
            tx.rollback().await?;
            return Ok(answers);
        }
        let joins = changes.joined - head.joined;
        head.joined = changes.joined;
        let writing = async {
            store::save_entries(&mut tx, drop, &changes.entries).await?;
            store::save_head(&mut tx, drop, &head).await
        };
        db.bounded(writing).await?;
        self.append(&mut tx, AdmissionEventType::Expired, &record, &changes.expired).await?;
        fault::point("drops.join.uncommitted");
        tx.commit().await?;
        fault::point("drops.join.committed");
        self.metrics.joined(joins);
        let EntryChanges { removed, added, .. } = changes;
        if !removed.is_empty() || !added.is_empty() {
            self.copiers[batcher_of(drop)].copy(LineChange { drop, removed, added }).await;
        }
        Ok(answers)
    }

    /// Logs and counts a loop's failure on one drop. The loop continues with the other drops.
    fn failed(&self, step: &'static str, drop: DropId, error: &Error) {
        self.metrics.failed(step);
        let cause = base::error::chain(error);
        if error.is_transient() {
            tracing::warn!(outage = step, %drop, step, cause, "a loop failed on a drop; it tries again with its next run");
        } else {
            tracing::error!(%drop, step, cause, "a loop failed on a drop; it tries again with its next run");
        }
    }

    /// Logs and counts a failed operation on the line.
    fn line_failed(&self, step: &'static str, drop: DropId, error: &(dyn std::error::Error + 'static)) {
        self.metrics.line_failed(step);
        tracing::warn!(outage = step, %drop, step, cause = base::error::chain(error), "the line in Redis is out of date; the reconciler will repair it");
    }
}

/// Returns the index of a drop's batcher. The low bits of drop ids are random, so drops spread evenly.
fn batcher_of(drop: DropId) -> usize {
    (drop.as_uuid().as_u128() % BATCHERS as u128) as usize
}

/// Runs an operation on the line with a timeout of [`LINE_TIMEOUT`].
async fn with_line_timeout<T>(
    operation: impl Future<Output = Result<T, redis_store::Error>>,
) -> Result<T, redis_store::Error> {
    let done = tokio::time::timeout(LINE_TIMEOUT, operation).await;
    done.unwrap_or_else(|_| Err(redis_store::Error::silent()))
}
