//! Sessions in the memory of this process.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Clock, Timestamp};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;

use super::{EndCause, Error, Group, Lease, PublishedEnd, RefreshClaim, Session, SessionId, StoredSession};

/// The buffer of the channel of ends. A slower subscriber misses some; streams also check their session at each heartbeat.
const ENDS_BUFFER: usize = 1024;
/// The number of inserts between two sweeps for expired sessions.
const SWEEP_EVERY: usize = 256;

#[derive(Debug)]
pub(super) struct Memory {
    clock: Clock,
    state: Mutex<State>,
    ends: broadcast::Sender<PublishedEnd>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<SessionId, MemorySession>,
    groups: HashMap<Group, HashSet<SessionId>>,
    inserts: usize,
}

#[derive(Debug)]
struct MemorySession {
    session: Session,
    version: u64,
    expires_at: Timestamp,
    lease: Option<(String, Timestamp)>,
}

impl Memory {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default(), ends: broadcast::Sender::new(ENDS_BUFFER) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inserts >= SWEEP_EVERY {
            state.sweep(self.clock.now());
        }
        state
    }

    pub(super) async fn insert(
        &self,
        id: &SessionId,
        session: &Session,
        life: Duration,
        _: Duration,
    ) -> Result<(), Error> {
        let mut state = self.state();
        state.inserts += 1;
        for group in session.groups() {
            state.groups.entry(group).or_default().insert(id.clone());
        }
        let entry = MemorySession {
            session: session.clone(),
            version: 0,
            expires_at: self.clock.now().after(life),
            lease: None,
        };
        state.sessions.insert(id.clone(), entry);
        Ok(())
    }

    pub(super) async fn read(&self, id: &SessionId, idle: Duration) -> Result<Option<StoredSession>, Error> {
        let (now, mut state) = (self.clock.now(), self.state());
        let Some(entry) = state.live(id, now) else { return Ok(None) };
        let end = Timestamp::from_millis(entry.session.ends_at);
        entry.expires_at = now.after(idle).min(end);
        Ok(Some(StoredSession { session: entry.session.clone(), version: entry.version }))
    }

    pub(super) async fn claim(
        &self,
        id: &SessionId,
        version: u64,
        fence: String,
        lease: Duration,
    ) -> Result<RefreshClaim, Error> {
        let (now, mut state) = (self.clock.now(), self.state());
        let Some(entry) = state.live(id, now) else { return Ok(RefreshClaim::Gone) };
        if entry.version != version {
            return Ok(RefreshClaim::Replaced);
        }
        if entry.lease.as_ref().is_some_and(|(_, until)| *until > now) {
            return Ok(RefreshClaim::Busy);
        }
        entry.lease = Some((fence.clone(), now.after(lease)));
        Ok(RefreshClaim::Granted(Lease { id: id.clone(), fence }))
    }

    pub(super) async fn renew(&self, lease: &Lease, length: Duration) -> Result<bool, Error> {
        let (now, mut state) = (self.clock.now(), self.state());
        if let Some(entry) = state.leased(lease, now) {
            entry.lease = Some((lease.fence.clone(), now.after(length)));
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) async fn replace(
        &self,
        lease: &Lease,
        session: &Session,
        life: Duration,
    ) -> Result<bool, Error> {
        let (now, mut state) = (self.clock.now(), self.state());
        let Some(entry) = state.leased(lease, now) else { return Ok(false) };
        entry.session = session.clone();
        entry.version += 1;
        entry.lease = None;
        entry.expires_at = now.after(life);
        Ok(true)
    }

    pub(super) async fn remove(&self, end: PublishedEnd, groups: &[Group]) -> Result<(), Error> {
        let mut state = self.state();
        state.sessions.remove(&end.id);
        for group in groups {
            state.leave_group(group, &end.id);
        }
        drop(state);
        let _ = self.ends.send(end);
        Ok(())
    }

    pub(super) async fn remove_group(&self, group: &Group) -> Result<usize, Error> {
        let mut state = self.state();
        let members = state.groups.remove(group).unwrap_or_default();
        let mut ended = 0;
        for id in &members {
            if let Some(entry) = state.sessions.remove(id) {
                ended += 1;
                entry.session.groups().iter().for_each(|group| state.leave_group(group, id));
            }
        }
        drop(state);
        for id in members {
            let _ = self.ends.send(PublishedEnd { id, cause: EndCause::Ended });
        }
        Ok(ended)
    }

    pub(super) async fn ends(&self) -> Result<BoxStream<'static, PublishedEnd>, Error> {
        let ends = self.ends.subscribe();
        // Missed ends are found at the next heartbeat.
        let next = |mut ends: broadcast::Receiver<PublishedEnd>| async move {
            loop {
                match ends.recv().await {
                    Ok(end) => return Some((end, ends)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        };
        Ok(futures::stream::unfold(ends, next).boxed())
    }
}

impl State {
    fn live(&mut self, id: &SessionId, now: Timestamp) -> Option<&mut MemorySession> {
        self.sessions.get_mut(id).filter(|entry| entry.expires_at > now)
    }

    fn leased(&mut self, lease: &Lease, now: Timestamp) -> Option<&mut MemorySession> {
        let entry = self.live(&lease.id, now)?;
        let is_held = entry.lease.as_ref().is_some_and(|(fence, _)| *fence == lease.fence);
        is_held.then_some(entry)
    }

    fn leave_group(&mut self, group: &Group, id: &SessionId) {
        if let Some(members) = self.groups.get_mut(group) {
            members.remove(id);
            if members.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        self.inserts = 0;
        let expired: Vec<(SessionId, Vec<Group>)> = self
            .sessions
            .extract_if(|_, entry| entry.expires_at <= now)
            .map(|(id, entry)| (id, entry.session.groups()))
            .collect();
        for (id, groups) in expired {
            groups.iter().for_each(|group| self.leave_group(group, &id));
        }
    }
}
