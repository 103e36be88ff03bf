//! Sessions in this process.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Clock, Timestamp};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;

use super::{Claim, Error, Found, Group, Lease, Session, SessionId};

/// How many ends may be told before whoever listens slowly misses some, and looks by itself.
const ENDS: usize = 1024;
/// After how many additions what is over is looked for and removed.
const SWEEP: usize = 256;

#[derive(Debug)]
pub(super) struct Memory {
    clock: Clock,
    kept: Mutex<Kept>,
    ends: broadcast::Sender<SessionId>,
}

#[derive(Debug, Default)]
struct Kept {
    sessions: HashMap<SessionId, Entry>,
    groups: HashMap<Group, HashSet<SessionId>>,
    added: usize,
}

#[derive(Debug)]
struct Entry {
    session: Session,
    version: u64,
    forgotten_at: Timestamp,
    lease: Option<(String, Timestamp)>,
}

impl Memory {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, kept: Mutex::default(), ends: broadcast::Sender::new(ENDS) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.added >= SWEEP {
            kept.sweep(self.clock.now());
        }
        kept
    }

    pub(super) async fn insert(
        &self,
        id: &SessionId,
        session: &Session,
        life: Duration,
        _: Duration,
    ) -> Result<(), Error> {
        let mut kept = self.kept();
        kept.added += 1;
        for group in session.groups() {
            kept.groups.entry(group).or_default().insert(id.clone());
        }
        let entry = Entry {
            session: session.clone(),
            version: 0,
            forgotten_at: self.clock.now().after(life),
            lease: None,
        };
        kept.sessions.insert(id.clone(), entry);
        Ok(())
    }

    pub(super) async fn read(&self, id: &SessionId, idle: Duration) -> Result<Option<Found>, Error> {
        let (now, mut kept) = (self.clock.now(), self.kept());
        let Some(entry) = kept.living(id, now) else { return Ok(None) };
        let end = Timestamp::from_millis(entry.session.ends_at);
        entry.forgotten_at = now.after(idle).min(end);
        Ok(Some(Found { session: entry.session.clone(), version: entry.version }))
    }

    pub(super) async fn claim(
        &self,
        id: &SessionId,
        version: u64,
        fence: String,
        lease: Duration,
    ) -> Result<Claim, Error> {
        let (now, mut kept) = (self.clock.now(), self.kept());
        let Some(entry) = kept.living(id, now) else { return Ok(Claim::Gone) };
        if entry.version != version {
            return Ok(Claim::Moved);
        }
        if entry.lease.as_ref().is_some_and(|(_, until)| *until > now) {
            return Ok(Claim::Busy);
        }
        entry.lease = Some((fence.clone(), now.after(lease)));
        Ok(Claim::Yours(Lease { id: id.clone(), fence }))
    }

    pub(super) async fn keep(&self, lease: &Lease, length: Duration) -> Result<bool, Error> {
        let (now, mut kept) = (self.clock.now(), self.kept());
        let held = kept.leased(lease, now);
        if let Some(entry) = held {
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
        let (now, mut kept) = (self.clock.now(), self.kept());
        let Some(entry) = kept.leased(lease, now) else { return Ok(false) };
        entry.session = session.clone();
        entry.version += 1;
        entry.lease = None;
        entry.forgotten_at = now.after(life);
        Ok(true)
    }

    pub(super) async fn remove(&self, id: &SessionId, groups: &[Group]) -> Result<(), Error> {
        let mut kept = self.kept();
        kept.sessions.remove(id);
        for group in groups {
            kept.leave(group, id);
        }
        drop(kept);
        let _ = self.ends.send(id.clone());
        Ok(())
    }

    pub(super) async fn remove_group(&self, group: &Group) -> Result<usize, Error> {
        let mut kept = self.kept();
        let members = kept.groups.remove(group).unwrap_or_default();
        let mut ended = 0;
        for id in &members {
            if let Some(entry) = kept.sessions.remove(id) {
                ended += 1;
                entry.session.groups().iter().for_each(|group| kept.leave(group, id));
            }
        }
        drop(kept);
        for id in members {
            let _ = self.ends.send(id);
        }
        Ok(ended)
    }

    pub(super) async fn ends(&self) -> Result<BoxStream<'static, SessionId>, Error> {
        let ends = self.ends.subscribe();
        // What was missed is found by those who look now and then.
        let next = |mut ends: broadcast::Receiver<SessionId>| async move {
            loop {
                match ends.recv().await {
                    Ok(id) => return Some((id, ends)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        };
        Ok(futures::stream::unfold(ends, next).boxed())
    }
}

impl Kept {
    fn living(&mut self, id: &SessionId, now: Timestamp) -> Option<&mut Entry> {
        self.sessions.get_mut(id).filter(|entry| entry.forgotten_at > now)
    }

    fn leased(&mut self, lease: &Lease, now: Timestamp) -> Option<&mut Entry> {
        let entry = self.living(&lease.id, now)?;
        let is_held = entry.lease.as_ref().is_some_and(|(fence, _)| *fence == lease.fence);
        is_held.then_some(entry)
    }

    fn leave(&mut self, group: &Group, id: &SessionId) {
        if let Some(members) = self.groups.get_mut(group) {
            members.remove(id);
            if members.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        self.added = 0;
        let over: Vec<(SessionId, Vec<Group>)> = self
            .sessions
            .extract_if(|_, entry| entry.forgotten_at <= now)
            .map(|(id, entry)| (id, entry.session.groups()))
            .collect();
        for (id, groups) in over {
            groups.iter().for_each(|group| self.leave(group, &id));
        }
    }
}
