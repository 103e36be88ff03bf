//! From the store to those who watch.
//!
//! One subscription serves all watchers of a process. What it may have lost is made good by looking at all watched tickets: when
//! it begins, when it says so, and every few seconds.
//!
//! Whoever makes a ticket watches it next, mostly here. So tickets that were made here are listened for from the start, for a
//! while, and watching one of them asks the store nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use buffa::Message;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_server::Held;
use proto::openmatch;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::watch;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::TicketId;
use crate::store::{Found, Push, Seen, Store};
use crate::wire;

#[derive(Clone, Debug)]
pub(crate) struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    check: Duration,
    metrics: Metrics,
    /// Whether the subscription is under way.
    listening: AtomicBool,
    watched: Mutex<HashMap<TicketId, Watched>>,
}

/// A ticket that is listened for.
#[derive(Debug)]
struct Watched {
    watchers: watch::Sender<Signal>,
    /// When it was made, if that was here. Until it is forgotten, nothing about it was missed.
    made: Option<Instant>,
}

/// How long a ticket that was made here is listened for before anybody watches it.
const FRESH: Duration = Duration::from_secs(5);

/// How long an answer may wait for its first assignment, so that both leave together.
const TOGETHER: Duration = Duration::from_millis(50);

/// What the watchers of a ticket know.
#[derive(Clone, Debug, PartialEq)]
enum Signal {
    Waiting,
    /// An encoded `WatchAssignmentsResponse`.
    Assigned(Bytes),
    Gone,
}

impl Signal {
    /// The entries of a map may be encoded in any order.
    fn says_the_same_as(&self, other: &Self) -> bool {
        let decoded = |signal: &Self| match signal {
            Self::Assigned(data) => openmatch::WatchAssignmentsResponse::decode_from_slice(data).ok(),
            _ => None,
        };
        self == other || decoded(self).is_some_and(|this| Some(this) == decoded(other))
    }
}

impl Hub {
    pub(super) fn new(store: Store, check: Duration, metrics: Metrics) -> Self {
        Self(Arc::new(Inner {
            store,
            check,
            metrics,
            listening: AtomicBool::new(false),
            watched: Mutex::default(),
        }))
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<TicketId, Watched>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket was made here, which lives so long.
    pub(crate) fn made(&self, id: TicketId, ttl: Duration) {
        if ttl > FRESH && self.0.listening.load(Ordering::Relaxed) {
            let watched =
                Watched { watchers: watch::Sender::new(Signal::Waiting), made: Some(Instant::now()) };
            // Who was faster than this has looked already.
            self.watched().entry(id).or_insert(watched);
        }
    }

    /// A ticket that was to be made here was not.
    pub(crate) fn not_made(&self, id: &TicketId) {
        let mut watched = self.watched();
        if watched.get(id).is_some_and(|watched| watched.watchers.receiver_count() == 0) {
            watched.remove(id);
        }
    }

    /// Passes on what the store tells.
    pub(super) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let ended = self.listen(drain).await;
        self.0.listening.store(false, Ordering::Relaxed);
        ended
    }

    async fn listen(&self, drain: Drain) -> Result<(), LoopError> {
        let mut pushes = self.0.store.pushes().await?;
        self.catch_up().await?;
        self.0.listening.store(true, Ordering::Relaxed);
        let mut check = tokio::time::interval(self.0.check);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        check.reset();
        loop {
            tokio::select! {
                push = pushes.next() => match push {
                    Some(Push::Assigned(made)) => self.tell_made(&made),
                    Some(Push::Gone(id)) => self.tell(&id, Signal::Gone),
                    Some(Push::Missed) => self.catch_up().await?,
                    None => return Err("the store no longer tells of assignments".into()),
                },
                _ = check.tick() => self.look_at_all().await?,
                () = drain.requested() => return Ok(()),
            }
        }
    }

    fn tell_made(&self, made: &[u8]) {
        let Some(matches) = wire::matches_made(made) else {
            tracing::error!("a push cannot be read");
            return;
        };
        let watched = self.watched();
        for made in &matches {
            // Encoded once for all players of a match, unless each has data of their own.
            let mut shared = None;
            for (id, assignment) in wire::assignments(made) {
                let Some(watched) = watched.get(id) else { continue };
                let signal = || Signal::Assigned(response(assignment.clone()));
                tell(
                    &watched.watchers,
                    match made.ticket_assignments.is_empty() {
                        true => shared.get_or_insert_with(signal).clone(),
                        false => signal(),
                    },
                );
            }
        }
    }

    fn tell(&self, id: &TicketId, signal: Signal) {
        if let Some(watched) = self.watched().get(id) {
            tell(&watched.watchers, signal);
        }
    }

    /// After something may have been missed: nothing is known any more without asking.
    async fn catch_up(&self) -> Result<(), Error> {
        self.watched().values_mut().for_each(|watched| watched.made = None);
        self.look_at_all().await
    }

    /// Asks the store about everything that is watched, and forgets what nobody came to watch.
    async fn look_at_all(&self) -> Result<(), Error> {
        let ids: Vec<TicketId> = {
            let mut watched = self.watched();
            watched.retain(|_, watched| !watched.is_forgotten());
            watched
                .iter()
                .filter(|(_, watched)| watched.watchers.receiver_count() > 0)
                .map(|(id, _)| id.clone())
                .collect()
        };
        for (id, seen) in ids.iter().zip(self.0.store.look(&ids).await?) {
            match seen {
                Seen::Waiting => {}
                Seen::Gone => self.tell(id, Signal::Gone),
                Seen::Assigned(data) => {
                    let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap_or_default();
                    self.tell(id, Signal::Assigned(response(assignment)));
                }
            }
        }
        Ok(())
    }

    pub(super) async fn watch(
        &self,
        id: TicketId,
        drain: Drain,
        held: Held,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let mut watcher = self.watcher(id, held).await?;
        let first = tokio::time::timeout(TOGETHER, watcher.next()).await.ok().transpose()?;
        Ok(futures::stream::iter(first.map(Ok)).chain(watcher.rest(drain)))
    }

    /// One who is told of the present assignment, if there is one, and of those to come.
    pub(crate) async fn watcher(&self, id: TicketId, held: Held) -> Result<Watcher, Error> {
        // First listen, then look: what happens in between is heard.
        let (mut watcher, known) = Watcher::new(self.clone(), id, held);
        if !known {
            match self.0.store.find(&watcher.id).await? {
                Found { assignment: Some(data), .. } => {
                    let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap_or_default();
                    watcher.hub.tell(&watcher.id, Signal::Assigned(response(assignment)));
                }
                Found { data: Some(data), .. } if wire::is_ticket(&watcher.id, &data) => {}
                Found { .. } => return Err(Error::NotFound(watcher.id.clone())),
            }
        }
        watcher.receiver.mark_changed();
        Ok(watcher)
    }
}

/// Tells all watchers of a ticket what they do not know yet.
fn tell(watchers: &watch::Sender<Signal>, signal: Signal) {
    watchers.send_if_modified(|known| {
        let news = !known.says_the_same_as(&signal);
        *known = signal;
        news
    });
}

fn response(assignment: openmatch::Assignment) -> Bytes {
    let assignment = buffa::MessageField::some(assignment);
    openmatch::WatchAssignmentsResponse { assignment, ..Default::default() }.encode_to_bytes()
}

impl Watched {
    /// Nobody watches, and nobody is about to.
    fn is_forgotten(&self) -> bool {
        self.watchers.receiver_count() == 0 && self.made.is_none_or(|made| made.elapsed() >= FRESH)
    }
}

/// One who watches. Leaves when dropped.
pub(crate) struct Watcher {
    hub: Hub,
    id: TicketId,
    receiver: watch::Receiver<Signal>,
    _held: Held,
}

impl Watcher {
    /// Also says whether everything that happened to this ticket has been heard here.
    fn new(hub: Hub, id: TicketId, held: Held) -> (Self, bool) {
        let (receiver, known) = {
            let listening = hub.0.listening.load(Ordering::Relaxed);
            let mut watched = hub.watched();
            let new = || Watched { watchers: watch::Sender::new(Signal::Waiting), made: None };
            let entry = watched.entry(id.clone()).or_insert_with(new);
            let known = listening && entry.made.is_some_and(|made| made.elapsed() < FRESH);
            (entry.watchers.subscribe(), known)
        };
        hub.0.metrics.watchers.inc();
        (Self { hub, id, receiver, _held: held }, known)
    }

    /// Each assignment as an encoded `WatchAssignmentsResponse`, until the ticket is gone or the process stops.
    pub(crate) fn rest(self, drain: Drain) -> impl Stream<Item = Result<Bytes, Error>> + Send {
        futures::stream::unfold(Some((self, drain)), |state| async move {
            let (mut watcher, drain) = state?;
            let next = tokio::select! {
                biased;
                next = watcher.next() => next,
                () = drain.requested() => Err(Error::Stopping),
            };
            let state = next.is_ok().then_some((watcher, drain));
            Some((next, state))
        })
    }

    /// Waits for the next assignment.
    async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            if self.receiver.changed().await.is_err() {
                return Err(Error::Stopping);
            }
            match &*self.receiver.borrow_and_update() {
                Signal::Waiting => {}
                Signal::Assigned(response) => return Ok(response.clone()),
                Signal::Gone => return Err(Error::NotFound(self.id.clone())),
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.0.metrics.watchers.dec();
        let mut watched = self.hub.watched();
        // The last one out. This receiver still counts.
        if watched.get(&self.id).is_some_and(|watched| watched.watchers.receiver_count() <= 1) {
            watched.remove(&self.id);
        }
    }
}
