//! Delivers the store's events to watchers.
//!
//! One subscription serves all watchers of a process. Lost events are made up for by checking all watched tickets: when
//! the subscription starts, after a gap, and every few seconds.
//!
//! An engine of another program sends no events. Once one is noticed, tickets are checked more often (`pace`).
//!
//! A client that creates a ticket usually watches it next, in the same process. The hub therefore tracks tickets
//! created here from the start, for a few seconds. Watching such a ticket costs no query.

mod pace;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use buffa::Message;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_server::StreamPermit;
use proto::openmatch;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::watch;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::TicketId;
use crate::players::RecentWaits;
use crate::store::{ReadyState, ReadyStates, Store, StoredTicket, TicketEvent, TicketReason, WatchState};
use crate::wire;

use self::pace::Pace;

#[derive(Clone, Debug)]
pub(crate) struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    check: Duration,
    metrics: Metrics,
    /// Whether the subscription is active.
    is_subscribed: AtomicBool,
    watched: Mutex<HashMap<TicketId, WatchedTicket>>,
    waits: RecentWaits,
}

/// A ticket whose events are delivered.
#[derive(Debug)]
struct WatchedTicket {
    watchers: watch::Sender<Signal>,
    /// When the ticket was created, if that was here. While set, no event of the ticket was missed.
    created_here: Option<Instant>,
}

/// How long a ticket created here is tracked before its first watcher.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// How long the response may wait for its first assignment, so that both leave together.
const FIRST_ASSIGNMENT_WAIT: Duration = Duration::from_millis(50);

/// The result of a check.
struct Checked {
    watched: usize,
    /// Tickets whose assignment was not known before.
    found: Vec<TicketId>,
}

/// The last state that a ticket's watchers received.
#[derive(Clone, Debug, PartialEq)]
enum Signal {
    Waiting,
    /// The state of the ticket's ready check, with its revision.
    Ready(i64, ReadyState),
    /// An encoded `WatchAssignmentsResponse`.
    Assigned(Bytes),
    /// The reason is missing if it is not known.
    Gone(Option<TicketReason>),
}

/// A change of a ticket, for a watcher that also wants to know of its ready check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TicketChange {
    Ready(ReadyState),
    /// An encoded `WatchAssignmentsResponse`.
    Assigned(Bytes),
    Gone(Option<TicketReason>),
}

impl Signal {
    /// Returns whether this signal must not replace another. Changes of a ready check do not matter to a ticket
    /// that is assigned or gone; and the first reason is the right one.
    fn is_older_than(&self, known: &Self) -> bool {
        match (self, known) {
            (Self::Ready(..), Self::Assigned(_) | Self::Gone(_)) | (Self::Gone(_), Self::Gone(_)) => true,
            (Self::Ready(revision, _), Self::Ready(known, _)) => revision < known,
            _ => false,
        }
    }

    /// Compares decoded messages, because map entries may be encoded in any order.
    fn is_same_as(&self, other: &Self) -> bool {
        if let (Self::Ready(_, this), Self::Ready(_, other)) = (self, other) {
            return this == other;
        }
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
            is_subscribed: AtomicBool::new(false),
            watched: Mutex::default(),
            waits: RecentWaits::default(),
        }))
    }

    /// Returns how long the tickets of recent matches waited.
    pub(crate) fn waits(&self) -> &RecentWaits {
        &self.0.waits
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<TicketId, WatchedTicket>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts tracking a ticket that is about to be created here.
    pub(crate) fn ticket_created(&self, id: TicketId, ttl: Duration) {
        if ttl > FRESH_FOR && self.0.is_subscribed.load(Ordering::Relaxed) {
            let watched = WatchedTicket {
                watchers: watch::Sender::new(Signal::Waiting),
                created_here: Some(Instant::now()),
            };
            // A faster watcher has already queried the store.
            self.watched().entry(id).or_insert(watched);
        }
    }

    /// Stops tracking a ticket that was not created after all.
    pub(crate) fn ticket_not_created(&self, id: &TicketId) {
        let mut watched = self.watched();
        if watched.get(id).is_some_and(|watched| watched.watchers.receiver_count() == 0) {
            watched.remove(id);
        }
    }

    /// Delivers the store's events until `drain` is requested.
    pub(super) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let ended = self.listen(drain).await;
        self.0.is_subscribed.store(false, Ordering::Relaxed);
        ended
    }

    async fn listen(&self, drain: Drain) -> Result<(), LoopError> {
        let mut events = self.0.store.ticket_events().await?;
        self.resync().await?;
        self.0.is_subscribed.store(true, Ordering::Relaxed);
        let mut pace = Pace::new(self.0.check);
        let first = pace.next(0, self.0.store.has_foreign_engine());
        let mut check = Box::pin(tokio::time::sleep(first));
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(TicketEvent::Assigned(matches)) => self.deliver_matches(&matches, &mut pace),
                    Some(TicketEvent::Gone(id)) => {
                        self.deliver(&id, Signal::Gone(Some(TicketReason::Cancelled)));
                    }
                    Some(TicketEvent::Ready(news)) => self.deliver_ready(news),
                    Some(TicketEvent::Gap) => drop(self.resync().await?),
                    None => return Err("the subscription to assignments has ended".into()),
                },
                () = check.as_mut() => {
                    let Checked { watched, found } = self.check_all().await?;
                    found.into_iter().for_each(|id| pace.found(id));
                    let next = pace.next(watched, self.0.store.has_foreign_engine());
                    check.as_mut().reset(tokio::time::Instant::now() + next);
                }
                () = drain.requested() => return Ok(()),
            }
        }
    }

    fn deliver_matches(&self, matches: &[u8], pace: &mut Pace) {
        let Some(matches) = wire::decode_matches(matches) else {
            tracing::error!("Ignored an unreadable message of the store");
            return;
        };
        self.0.waits.add(&matches);
        let watched = self.watched();
        for match_ in &matches {
            // Encoded once for all players of a match, unless the tickets have assignments of their own.
            let mut shared = None;
            for (id, assignment) in wire::ticket_assignments(match_) {
                pace.pushed(id);
                let Some(watched) = watched.get(id) else { continue };
                let signal = || Signal::Assigned(response(assignment.clone()));
                deliver(
                    &watched.watchers,
                    match match_.ticket_assignments.is_empty() {
                        true => shared.get_or_insert_with(signal).clone(),
                        false => signal(),
                    },
                );
            }
        }
    }

    /// Returns whether the signal is new to a ticket that is tracked.
    fn deliver(&self, id: &TicketId, signal: Signal) -> bool {
        self.watched().get(id).is_some_and(|watched| deliver(&watched.watchers, signal))
    }

    fn deliver_ready(&self, ReadyStates { revision, states }: ReadyStates) {
        for (id, state) in states {
            let signal = match state {
                // The assignment follows.
                ReadyState::Assigned => continue,
                ReadyState::Left(reason) => Signal::Gone(Some(reason)),
                state => Signal::Ready(revision, state),
            };
            self.deliver(&id, signal);
        }
    }

    /// Queries the ready checks of these tickets.
    async fn check_ready(&self, ids: &[TicketId]) -> Result<(), Error> {
        let mut read = self.0.store.ready_states(ids).await?;
        // A check that ended without news.
        let known: HashSet<&TicketId> = read.states.iter().map(|(id, _)| id).collect();
        let over = ids.iter().filter(|id| !known.contains(id) && self.is_in_check(id));
        let over: Vec<_> = over.map(|id| (id.clone(), ReadyState::Over(None))).collect();
        read.states.extend(over);
        self.deliver_ready(read);
        Ok(())
    }

    /// Returns whether the watchers of a ticket were notified of a ready check.
    fn is_in_check(&self, id: &TicketId) -> bool {
        let is_open = |watched: &WatchedTicket| {
            matches!(&*watched.watchers.borrow(), Signal::Ready(_, ReadyState::Open(_)))
        };
        self.watched().get(id).is_some_and(is_open)
    }

    /// Queries the ready checks of tickets that have one, or may have one.
    async fn check_all_ready(&self, ids: &[TicketId], states: &[WatchState]) -> Result<(), Error> {
        let has_checks = !ids.is_empty() && self.0.store.has_ready_checks().await?;
        let may_have = |(id, state): &(&TicketId, &WatchState)| match state {
            WatchState::Waiting => has_checks || self.is_in_check(id),
            WatchState::Gone => self.is_in_check(id),
            WatchState::Assigned(_) => false,
        };
        let checked = ids.iter().zip(states).filter(may_have).map(|(id, _)| id.clone());
        self.check_ready(&checked.collect::<Vec<_>>()).await
    }

    /// Queries all watched tickets after events may have been missed.
    async fn resync(&self) -> Result<Checked, Error> {
        self.watched().values_mut().for_each(|watched| watched.created_here = None);
        self.check_all().await
    }

    /// Queries the state of all watched tickets, and stops tracking tickets that have no watcher.
    async fn check_all(&self) -> Result<Checked, Error> {
        let ids: Vec<TicketId> = {
            let mut watched = self.watched();
            watched.retain(|_, watched| !watched.is_unused());
            watched
                .iter()
                .filter(|(_, watched)| watched.watchers.receiver_count() > 0)
                .map(|(id, _)| id.clone())
                .collect()
        };
        let mut checked = Checked { watched: ids.len(), found: Vec::new() };
        let states = self.0.store.watch_states(&ids).await?;
        // First, because it may know why a ticket is gone.
        self.check_all_ready(&ids, &states).await?;
        for (id, state) in ids.iter().zip(states) {
            match state {
                WatchState::Waiting => {}
                WatchState::Gone => {
                    self.deliver(id, Signal::Gone(None));
                }
                WatchState::Assigned(data) => {
                    let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap_or_default();
                    if self.deliver(id, Signal::Assigned(response(assignment))) {
                        checked.found.push(id.clone());
                    }
                }
            }
        }
        Ok(checked)
    }

    pub(super) async fn watch(
        &self,
        id: TicketId,
        drain: Drain,
        held: StreamPermit,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let mut watcher = self.watcher(id, held).await?;
        let first = tokio::time::timeout(FIRST_ASSIGNMENT_WAIT, watcher.next()).await.ok().transpose()?;
        Ok(futures::stream::iter(first.map(Ok)).chain(watcher.rest(drain)))
    }

    /// Returns a watcher that receives the current assignment, if there is one, and all later ones.
    pub(crate) async fn watcher(&self, id: TicketId, held: StreamPermit) -> Result<Watcher, Error> {
        // Subscribe first, then query, so that no change in between is lost.
        let mut watcher = Watcher::new(self.clone(), id, held);
        let is_current = watcher.is_current;
        let is_gone = matches!(&*watcher.receiver.borrow(), Signal::Gone(_));
        if is_current && is_gone {
            // A ticket that was cancelled may be assigned all the same, by a program that fetched it before.
            if let Some(data) = self.0.store.find(&watcher.id).await?.assignment {
                let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap_or_default();
                watcher.hub.deliver(&watcher.id, Signal::Assigned(response(assignment)));
            }
        } else if !is_current {
            match self.0.store.find(&watcher.id).await? {
                StoredTicket { assignment: Some(data), .. } => {
                    let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap_or_default();
                    watcher.hub.deliver(&watcher.id, Signal::Assigned(response(assignment)));
                }
                StoredTicket { data: Some(data), .. } if wire::is_ticket(&watcher.id, &data) => {}
                StoredTicket { .. } => return Err(Error::NotFound(watcher.id.to_string())),
            }
        }
        watcher.receiver.mark_changed();
        Ok(watcher)
    }

    /// Returns a watcher as [`watcher`](Self::watcher) does, which also receives the ready check of the ticket.
    pub(crate) async fn ready_watcher(&self, id: TicketId, held: StreamPermit) -> Result<Watcher, Error> {
        let watcher = self.watcher(id, held).await?;
        if !watcher.is_current {
            self.check_ready(std::slice::from_ref(&watcher.id)).await?;
        }
        Ok(watcher)
    }
}

/// Sends a signal to the watchers of a ticket if it is new to them. Returns whether it was.
fn deliver(watchers: &watch::Sender<Signal>, signal: Signal) -> bool {
    watchers.send_if_modified(|known| {
        if signal.is_older_than(known) {
            return false;
        }
        let is_new = !known.is_same_as(&signal);
        *known = signal;
        is_new
    })
}

fn response(assignment: openmatch::Assignment) -> Bytes {
    let assignment = buffa::MessageField::some(assignment);
    openmatch::WatchAssignmentsResponse { assignment, ..Default::default() }.encode_to_bytes()
}

impl WatchedTicket {
    /// Returns whether the ticket has no watcher, and is too old to expect one.
    fn is_unused(&self) -> bool {
        self.watchers.receiver_count() == 0 && self.created_here.is_none_or(|at| at.elapsed() >= FRESH_FOR)
    }
}

/// A watcher of one ticket. Dropping it ends the subscription.
pub(crate) struct Watcher {
    hub: Hub,
    id: TicketId,
    receiver: watch::Receiver<Signal>,
    /// Whether no event of this ticket can have been missed before this watcher existed.
    is_current: bool,
    _held: StreamPermit,
}

impl Watcher {
    fn new(hub: Hub, id: TicketId, held: StreamPermit) -> Self {
        let (receiver, is_current) = {
            let is_subscribed = hub.0.is_subscribed.load(Ordering::Relaxed);
            let mut watched = hub.watched();
            let new = || WatchedTicket { watchers: watch::Sender::new(Signal::Waiting), created_here: None };
            let entry = watched.entry(id.clone()).or_insert_with(new);
            let is_current = is_subscribed && entry.created_here.is_some_and(|at| at.elapsed() < FRESH_FOR);
            (entry.watchers.subscribe(), is_current)
        };
        hub.0.metrics.watchers.inc();
        Self { hub, id, receiver, is_current, _held: held }
    }

    /// Streams each assignment as an encoded `WatchAssignmentsResponse`, until the ticket is gone or the process stops.
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

    /// Streams each change of the ticket, until it is gone or the process stops.
    pub(crate) fn changes(self, drain: Drain) -> impl Stream<Item = Result<TicketChange, Error>> + Send {
        futures::stream::unfold(Some((self, drain)), |state| async move {
            let (mut watcher, drain) = state?;
            let next = tokio::select! {
                biased;
                next = watcher.next_change() => next,
                () = drain.requested() => Err(Error::Stopping),
            };
            let is_last = matches!(next, Err(_) | Ok(TicketChange::Gone(_)));
            Some((next, (!is_last).then_some((watcher, drain))))
        })
    }

    /// Waits for the next assignment.
    async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            match self.next_change().await? {
                TicketChange::Ready(_) => {}
                TicketChange::Assigned(response) => return Ok(response),
                TicketChange::Gone(_) => return Err(Error::NotFound(self.id.to_string())),
            }
        }
    }

    async fn next_change(&mut self) -> Result<TicketChange, Error> {
        loop {
            if self.receiver.changed().await.is_err() {
                return Err(Error::Stopping);
            }
            return Ok(match &*self.receiver.borrow_and_update() {
                Signal::Waiting => continue,
                Signal::Ready(_, state) => TicketChange::Ready(state.clone()),
                Signal::Assigned(response) => TicketChange::Assigned(response.clone()),
                Signal::Gone(reason) => TicketChange::Gone(*reason),
            });
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.0.metrics.watchers.dec();
        let mut watched = self.hub.watched();
        // The last watcher. This receiver still counts.
        if watched.get(&self.id).is_some_and(|watched| watched.watchers.receiver_count() <= 1) {
            watched.remove(&self.id);
        }
    }
}
