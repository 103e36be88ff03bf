//! Tickets in process: for one process, and for tests of match functions.

mod players;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::id::Uuid;
use base::{Clock, Timestamp};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{Notify, broadcast};

use self::players::Owner;
use super::{
    Assigned, AssignerFailure, Deleted, EngineName, Entry, Error, FAILURE_KEPT, Fetched, Found, Group,
    MARKED, NewTicket, Outcome, Part, Push, RECOVERY_LEASE, Rules, Seen, Status, Then,
};
use crate::metrics::Metrics;
use crate::model::{MatchId, TicketId};

/// How many pushes a slow listener may be behind before it has to ask.
const PUSHES: usize = 4096;

#[derive(Clone, Debug)]
pub struct Memory {
    rules: Rules,
    clock: Clock,
    metrics: Metrics,
    state: Arc<Mutex<State>>,
    pushes: broadcast::Sender<Push>,
    /// Tickets have arrived.
    arrived: Arc<Notify>,
    /// Players have been notified.
    notified: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    tickets: HashMap<TicketId, Kept>,
    /// By creation, of the tickets that take part.
    queue: BTreeSet<(i64, TicketId)>,
    pending: HashMap<TicketId, Timestamp>,
    /// When each ticket's data goes.
    ends: BTreeSet<(Timestamp, TicketId)>,
    /// The tickets of each player.
    players: HashMap<Uuid, BTreeSet<TicketId>>,
    /// When each ticket that can be is overdue.
    due: BTreeSet<(Timestamp, TicketId)>,
    /// Matches that must not be made, and until when that is remembered.
    abandoned: HashMap<MatchId, Timestamp>,
    entries: BTreeMap<u64, Unrecorded>,
    last_entry: u64,
    /// How many bytes the entries have.
    unrecorded: u64,
    /// By profile. There is one engine.
    assigner_failures: HashMap<String, AssignerFailure>,
    /// Who has taken entries, and until when.
    taken: Option<(String, Timestamp)>,
}

#[derive(Debug)]
struct Kept {
    /// Absent where an assignment outlives its ticket.
    data: Option<Bytes>,
    created: i64,
    ends: Timestamp,
    assignment: Option<Bytes>,
    /// Nobody sees the assignment before the match is recorded: a process that dies earlier has told nobody of it.
    is_hidden: bool,
    owner: Option<Owner>,
}

impl Kept {
    fn found(&self) -> Found {
        Found { data: self.data.clone(), assignment: self.visible_assignment().cloned() }
    }

    fn visible_assignment(&self) -> Option<&Bytes> {
        self.assignment.as_ref().filter(|_| !self.is_hidden)
    }
}

#[derive(Debug)]
struct Unrecorded {
    made: Bytes,
    since: Timestamp,
    tickets: Vec<TicketId>,
}

impl State {
    /// Forgets what has expired. Returns how many still took part.
    fn expire(&mut self, now: Timestamp) -> u64 {
        let mut lost = 0;
        while let Some((ends, id)) = self.ends.first().cloned() {
            if ends > now {
                break;
            }
            lost += u64::from(self.forget(&id));
        }
        lost
    }

    /// One that is there already stays as it is.
    fn insert(&mut self, ticket: NewTicket, now: Timestamp) {
        if self.tickets.contains_key(&ticket.id) {
            return;
        }
        let (ends, created) = (now.after(ticket.ttl), ticket.created.micros());
        self.ends.insert((ends, ticket.id.clone()));
        self.queue.insert((created, ticket.id.clone()));
        let kept =
            Kept { data: Some(ticket.data), created, ends, assignment: None, is_hidden: false, owner: None };
        self.tickets.insert(ticket.id, kept);
    }

    /// Returns whether the ticket took part.
    fn forget(&mut self, id: &TicketId) -> bool {
        let indexed = self.deindex(id);
        self.disown(id);
        if let Some(kept) = self.tickets.remove(id) {
            self.ends.remove(&(kept.ends, id.clone()));
        }
        indexed
    }

    fn deindex(&mut self, id: &TicketId) -> bool {
        self.pending.remove(id);
        self.tickets.get(id).is_some_and(|kept| self.queue.remove(&(kept.created, id.clone())))
    }

    fn is_indexed(&self, id: &TicketId) -> bool {
        self.tickets.get(id).is_some_and(|kept| self.queue.contains(&(kept.created, id.clone())))
    }

    fn outcome(&self, group: &Group, check: bool) -> Outcome {
        if group.fence.is_some_and(|id| self.abandoned.contains_key(&id)) {
            return Outcome::Abandoned;
        }
        let in_the_way = |id: &&TicketId| {
            let assigned = self.tickets.get(*id).is_some_and(|kept| kept.assignment.is_some());
            assigned || check && !self.is_indexed(id)
        };
        group.tickets.iter().find(in_the_way).map_or(Outcome::Assigned, |id| Outcome::Refused(id.clone()))
    }
}

impl Memory {
    pub(super) fn new(rules: Rules, clock: Clock, metrics: Metrics) -> Self {
        Self {
            rules,
            clock,
            metrics,
            state: Arc::default(),
            pushes: broadcast::channel(PUSHES).0,
            arrived: Arc::default(),
            notified: Arc::default(),
        }
    }

    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The state as it is now.
    fn state(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.metrics.repaired.inc_by(state.expire(now));
        (state, now)
    }

    fn push(&self, push: Push) {
        // Nobody listening is fine.
        let _ = self.pushes.send(push);
    }

    pub(super) async fn create(&self, ticket: NewTicket) -> Result<(), Error> {
        let (mut state, now) = self.state();
        state.insert(ticket, now);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    pub(super) async fn find(&self, id: &TicketId) -> Result<Found, Error> {
        let (state, _) = self.state();
        Ok(state.tickets.get(id).map(Kept::found).unwrap_or_default())
    }

    pub(super) async fn look(&self, ids: &[TicketId]) -> Result<Vec<Seen>, Error> {
        let (state, _) = self.state();
        let look = |id| match state.tickets.get(id) {
            None => Seen::Gone,
            Some(kept) => kept
                .visible_assignment()
                .map_or(Seen::Waiting, |assignment| Seen::Assigned(assignment.clone())),
        };
        Ok(ids.iter().map(look).collect())
    }

    pub(super) async fn delete(&self, id: &TicketId) -> Result<Deleted, Error> {
        loop {
            let notified = self.notified.notified();
            tokio::pin!(notified);
            // From here on, or the notification could come between the look and the wait.
            notified.as_mut().enable();
            {
                let (mut state, _) = self.state();
                match state.tickets.get(id) {
                    None => return Ok(Deleted::Unknown),
                    Some(kept) if kept.visible_assignment().is_some() => return Ok(Deleted::Assigned),
                    Some(kept) if kept.is_hidden => {}
                    Some(_) => {
                        state.forget(id);
                        self.push(Push::Gone(id.clone()));
                        return Ok(Deleted::Done);
                    }
                }
            }
            // It is assigned, and nobody may be told so before the match is recorded.
            notified.await;
        }
    }

    pub(super) async fn deindex(&self, id: &TicketId) -> Result<(), Error> {
        self.state().0.deindex(id);
        Ok(())
    }

    pub(super) async fn fetch(&self, _: &EngineName, limit: usize) -> Result<Fetched, Error> {
        let (mut state, now) = self.state();
        let waiting = state.queue.len() as u64;
        if state.unrecorded >= self.rules.max_unrecorded {
            return Ok(Fetched { waiting, is_held_back: true, ..Fetched::default() });
        }
        let live = |since: &Timestamp| now.distance(*since) <= self.rules.pending_timeout;
        let active =
            state.queue.iter().map(|(_, id)| id).filter(|id| !state.pending.get(*id).is_some_and(live));
        let ids: Vec<TicketId> = active.take(limit).cloned().collect();
        state.pending.extend(ids.iter().map(|id| (id.clone(), now)));
        Ok(Fetched { ids, waiting, is_held_back: false })
    }

    pub(super) async fn read(&self, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        let (state, _) = self.state();
        Ok(ids.iter().map(|id| state.tickets.get(id).and_then(|kept| kept.data.clone())).collect())
    }

    pub(super) async fn release(&self, ids: &[TicketId]) -> Result<(), Error> {
        let (mut state, _) = self.state();
        for id in ids {
            state.pending.remove(id);
        }
        Ok(())
    }

    pub(super) async fn assign(&self, groups: &[Group]) -> Result<Assigned, Error> {
        let (mut state, now) = self.state();
        let ends = now.after(self.rules.assigned_ttl);
        let mut outcomes = Vec::with_capacity(groups.len());
        let (mut made, mut tickets) = (Vec::new(), Vec::new());
        for group in groups {
            let outcome = state.outcome(group, self.rules.check_tickets);
            if outcome == Outcome::Assigned {
                // The only one is for all of them.
                let assignments = group.assignments.all().iter();
                for (id, assignment) in group.tickets.iter().zip(assignments.cycle()) {
                    state.assign(id, assignment, ends);
                }
                made.extend_from_slice(&group.made);
                tickets.extend_from_slice(&group.tickets);
            }
            outcomes.push(outcome);
        }
        let mut entries = Vec::new();
        if outcomes.contains(&Outcome::Assigned) {
            let made = Bytes::from(made);
            state.last_entry += 1;
            let number = state.last_entry;
            state.unrecorded += made.len() as u64;
            state.entries.insert(number, Unrecorded { made: made.clone(), since: now, tickets });
            entries.push(Entry { key: number.to_string(), made });
        }
        Ok(Assigned { outcomes, entries })
    }

    pub(super) async fn notify<'a>(&self, entries: &'a [Entry], then: Then) -> Result<Vec<&'a Entry>, Error> {
        let (mut state, _) = self.state();
        for entry in entries {
            let Some(number) = entry.number() else { continue };
            if !state.show(number) {
                continue;
            }
            if then != Then::Keep {
                state.remove(number);
            }
            self.push(Push::Assigned(entry.made.clone()));
        }
        drop(state);
        self.notified.notify_waiters();
        Ok(entries.iter().filter(|_| then != Then::Keep).collect())
    }

    pub(super) async fn mark_abandoned(&self, ids: &[MatchId]) -> Result<(), Error> {
        let (mut state, now) = self.state();
        state.abandoned.retain(|_, until| *until > now);
        state.abandoned.extend(ids.iter().map(|id| (*id, now.after(MARKED))));
        Ok(())
    }

    pub(super) async fn unrecorded_matches(&self) -> Result<Vec<Bytes>, Error> {
        Ok(self.state().0.entries.values().map(|entry| entry.made.clone()).collect())
    }

    pub(super) async fn pushes(&self) -> Result<BoxStream<'static, Push>, Error> {
        let listening = self.pushes.subscribe();
        let stream = futures::stream::unfold(listening, |mut listening| async move {
            match listening.recv().await {
                Ok(push) => Some((push, listening)),
                Err(broadcast::error::RecvError::Lagged(_)) => Some((Push::Missed, listening)),
                Err(broadcast::error::RecvError::Closed) => None,
            }
        });
        Ok(stream.boxed())
    }

    pub(super) async fn listen_for_wakes(&self, _: &EngineName, wake: &Notify) -> Result<(), Error> {
        loop {
            self.arrived.notified().await;
            wake.notify_one();
        }
    }

    pub(super) async fn take_unrecorded(
        &self,
        consumer: &str,
        max: usize,
        older_than: Duration,
        part: Part<'_>,
    ) -> Result<Vec<Entry>, Error> {
        let number = |key: Option<&str>| key.and_then(|key| key.parse::<u64>().ok());
        let first = number(part.after).map_or(Bound::Unbounded, Bound::Excluded);
        let last = number(part.up_to).unwrap_or(u64::MAX);
        let (mut state, now) = self.state();
        if state.taken.as_ref().is_some_and(|(by, until)| by != consumer && *until > now) {
            return Ok(Vec::new());
        }
        let entries = state.entries.range((first, Bound::Unbounded));
        let entries: Vec<Entry> = entries
            .take_while(|(number, _)| **number <= last)
            .filter(|(_, entry)| now.distance(entry.since) >= older_than)
            .take(max)
            .map(|(number, entry)| Entry { key: number.to_string(), made: entry.made.clone() })
            .collect();
        if !entries.is_empty() {
            state.taken = Some((consumer.to_owned(), now.after(RECOVERY_LEASE)));
        } else if part.after.is_none() {
            state.taken = None;
        }
        Ok(entries)
    }

    pub(super) async fn unrecorded(&self) -> Result<(u64, u64), Error> {
        let (state, _) = self.state();
        Ok((state.entries.len() as u64, state.unrecorded))
    }

    pub(super) async fn list(&self, limit: usize) -> Result<(Vec<TicketId>, u64), Error> {
        let (state, _) = self.state();
        let ids = state.queue.iter().take(limit).map(|(_, id)| id.clone()).collect();
        Ok((ids, state.queue.len() as u64))
    }

    pub(super) async fn report_assigner(
        &self,
        _: &EngineName,
        profile: &str,
        failure: Option<&AssignerFailure>,
    ) -> Result<(), Error> {
        let (mut state, _) = self.state();
        state.assigner_failures.remove(profile);
        state.assigner_failures.extend(failure.map(|failure| (profile.to_owned(), failure.clone())));
        Ok(())
    }

    pub(super) async fn assigner_failures(&self) -> Result<Vec<AssignerFailure>, Error> {
        let (mut state, now) = self.state();
        let is_recent = |failure: &AssignerFailure| {
            now.distance(Timestamp::from_millis(failure.failed_at)) < FAILURE_KEPT
        };
        state.assigner_failures.retain(|_, failure| is_recent(failure));
        Ok(state.assigner_failures.values().cloned().collect())
    }

    pub(super) async fn status(&self, id: &TicketId) -> Result<Status, Error> {
        let found = self.find(id).await?;
        let (state, now) = self.state();
        Ok(Status {
            found,
            indexed: state.is_indexed(id),
            pending_since: state
                .pending
                .get(id)
                .filter(|since| now.distance(**since) <= self.rules.pending_timeout)
                .map(|since| since.as_millis() / 1000),
            ttl: state.tickets.get(id).map(|kept| kept.ends.distance(now)),
        })
    }
}

impl Entry {
    fn number(&self) -> Option<u64> {
        self.key.parse().ok()
    }
}

impl State {
    /// Lets the assignments of an entry be seen. False if there is no such entry.
    fn show(&mut self, number: u64) -> bool {
        let Some(entry) = self.entries.get(&number) else { return false };
        for id in &entry.tickets {
            if let Some(kept) = self.tickets.get_mut(id) {
                kept.is_hidden = false;
            }
        }
        true
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            self.unrecorded -= entry.made.len() as u64;
        }
    }

    fn assign(&mut self, id: &TicketId, assignment: &Bytes, ends: Timestamp) {
        self.deindex(id);
        // Without the check a ticket may be gone already; its player still learns where to go.
        let kept = self.tickets.entry(id.clone()).or_insert_with(|| Kept {
            data: None,
            created: 0,
            ends,
            assignment: None,
            is_hidden: false,
            owner: None,
        });
        let before = std::mem::replace(&mut kept.ends, ends);
        kept.assignment = Some(assignment.clone());
        kept.is_hidden = true;
        self.ends.remove(&(before, id.clone()));
        self.ends.insert((ends, id.clone()));
        self.set_due(id, |_| None);
    }
}
