//! From the store to those who watch.
//!
//! One subscription serves all watchers of a process. What it may have lost is made good by looking at all watched tickets: when
//! it begins, when it says so, and every few seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use buffa::Message;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use proto::openmatch;
use runtime::Drain;
use runtime::http::Held;
use runtime::lifecycle::LoopError;
use tokio::sync::watch;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::TicketId;
use crate::store::{Found, Push, Seen, Store};
use crate::wire;

#[derive(Clone, Debug)]
pub(super) struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    check: Duration,
    metrics: Metrics,
    watched: Mutex<HashMap<TicketId, watch::Sender<Signal>>>,
}

/// What the watchers of a ticket know.
#[derive(Clone, Debug, PartialEq)]
enum Signal {
    Waiting,
    /// An encoded `WatchAssignmentsResponse`.
    Assigned(Bytes),
    Gone,
}

impl Hub {
    pub(super) fn new(store: Store, check: Duration, metrics: Metrics) -> Self {
        Self(Arc::new(Inner { store, check, metrics, watched: Mutex::default() }))
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<TicketId, watch::Sender<Signal>>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what the store tells.
    pub(super) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let mut pushes = self.0.store.pushes().await?;
        self.look_at_all().await?;
        let mut check = tokio::time::interval(self.0.check);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        check.reset();
        loop {
            tokio::select! {
                push = pushes.next() => match push {
                    Some(Push::Assigned(made)) => self.tell_made(&made),
                    Some(Push::Gone(id)) => self.tell(&id, Signal::Gone),
                    Some(Push::Missed) => self.look_at_all().await?,
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
        let mut watched = self.watched();
        for mut made in matches {
            let ids = std::mem::take(&mut made.ticket_ids);
            if ids.iter().any(|id| watched.contains_key(id.as_str())) {
                let signal = Signal::Assigned(response(made.assignment.take().unwrap_or_default()));
                for id in ids {
                    if let Some(watchers) = watched.get_mut(id.as_str()) {
                        tell(watchers, signal.clone());
                    }
                }
            }
        }
    }

    fn tell(&self, id: &TicketId, signal: Signal) {
        if let Some(watchers) = self.watched().get(id) {
            tell(watchers, signal);
        }
    }

    /// Asks the store about everything that is watched.
    async fn look_at_all(&self) -> Result<(), Error> {
        let ids: Vec<TicketId> = self.watched().keys().cloned().collect();
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
        // First listen, then look: what happens in between is heard.
        let mut watcher = Watcher::new(self.clone(), id, held);
        match self.0.store.find(&watcher.id).await? {
            Found { assignment: Some(data), .. } => {
                let assignment = openmatch::Assignment::decode_from_slice(&data).unwrap_or_default();
                watcher.hub.tell(&watcher.id, Signal::Assigned(response(assignment)));
            }
            Found { data: Some(_), .. } => {}
            Found { .. } => return Err(Error::NotFound(watcher.id.clone())),
        }
        watcher.receiver.mark_changed();
        Ok(futures::stream::unfold(Some((watcher, drain)), |state| async move {
            let (mut watcher, drain) = state?;
            let next = tokio::select! {
                biased;
                next = watcher.next() => next,
                () = drain.requested() => Err(Error::Stopping),
            };
            let state = next.is_ok().then_some((watcher, drain));
            Some((next, state))
        }))
    }
}

/// Tells all watchers of a ticket what they do not know yet. A ticket that was assigned and has expired since is not news.
fn tell(watchers: &watch::Sender<Signal>, signal: Signal) {
    watchers.send_if_modified(|known| {
        let news = *known != signal;
        *known = signal;
        news
    });
}

fn response(assignment: openmatch::Assignment) -> Bytes {
    let assignment = buffa::MessageField::some(assignment);
    openmatch::WatchAssignmentsResponse { assignment, ..Default::default() }.encode_to_bytes()
}

/// One who watches. Leaves when dropped.
struct Watcher {
    hub: Hub,
    id: TicketId,
    receiver: watch::Receiver<Signal>,
    _held: Held,
}

impl Watcher {
    fn new(hub: Hub, id: TicketId, held: Held) -> Self {
        let receiver = {
            let mut watched = hub.watched();
            let watchers = watched.entry(id.clone()).or_insert_with(|| watch::Sender::new(Signal::Waiting));
            watchers.subscribe()
        };
        hub.0.metrics.watchers.inc();
        Self { hub, id, receiver, _held: held }
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
        if watched.get(&self.id).is_some_and(|watchers| watchers.receiver_count() <= 1) {
            watched.remove(&self.id);
        }
    }
}
