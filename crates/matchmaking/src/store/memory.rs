//! Tickets in memory: for a single process, and for tests of match functions.

mod backfills;
mod changes;
mod claims;
mod parties;
mod players;
mod ready;
mod rooms;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::id::Uuid;
use base::{Clock, Timestamp};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use runtime::fault;
use tokio::sync::{Notify, broadcast};

use self::backfills::MemoryBackfill;
use self::changes::ChangeLog;
use self::parties::{MemoryMembership, MemoryParty};
use self::players::Owner;
use self::ready::ReadyChecks;
use super::changes::ChangeKind;
use super::{
    ABANDONED_MARK_TTL, AfterNotify, AssignOutcome, AssignResult, AssignerFailure, AssignmentGroup,
    BatchRange, Claim, DeleteOutcome, EngineName, Error, FAILURE_RETENTION, FetchedTickets, Holder,
    NewTicket, RECOVERY_LEASE, Rules, StoredTicket, TicketEvent, TicketStatus, UnrecordedBatch, WaitingTimes,
    WatchState,
};
use crate::metrics::Metrics;
use crate::model::{BackfillId, MatchId, PartyId, TicketId};

/// How many events a slow subscriber may lag behind before it gets [`TicketEvent::Gap`].
const MAX_LAG: usize = 4096;

#[derive(Clone, Debug)]
pub struct Memory {
    rules: Rules,
    clock: Clock,
    metrics: Metrics,
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<TicketEvent>,
    /// Notified when a ticket is created.
    created: Arc<Notify>,
    /// Notified when players have been notified of a match.
    notified: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    tickets: HashMap<TicketId, MemoryTicket>,
    /// The tickets in matchmaking, by creation time.
    queue: BTreeSet<(i64, TicketId)>,
    pending: HashMap<TicketId, Claim>,
    /// The number of the last claim.
    last_claim: u32,
    /// The Directors that hold claims, by number, each with the number of the first claim of its call, and with the time until
    /// which that is remembered.
    holders: HashMap<u32, (Holder, u32, Timestamp)>,
    /// The expiry of each ticket's data.
    expiry: BTreeSet<(Timestamp, TicketId)>,
    /// The tickets of each player.
    players: HashMap<Uuid, BTreeSet<TicketId>>,
    /// The tickets that can become overdue, by when they do because of which player.
    due: BTreeSet<(Timestamp, TicketId, Uuid)>,
    parties: HashMap<PartyId, MemoryParty>,
    party_expiry: BTreeSet<(Timestamp, PartyId)>,
    party_codes: HashMap<String, PartyId>,
    memberships: HashMap<Uuid, MemoryMembership>,
    /// Matches that must not be assigned, each with the time until which that is remembered.
    abandoned: HashMap<MatchId, Timestamp>,
    backfills: HashMap<BackfillId, MemoryBackfill>,
    ready: ReadyChecks,
    batches: BTreeMap<u64, MemoryBatch>,
    last_batch: u64,
    /// The size of the batches in bytes.
    unrecorded: u64,
    /// By profile. There is one engine.
    assigner_failures: HashMap<String, AssignerFailure>,
    /// The consumer that has claimed batches, and until when.
    recovery_claim: Option<(String, Timestamp)>,
    /// What happened to tickets, while somebody reads it.
    changes: Option<ChangeLog>,
    /// How many changes were recorded so far.
    change_count: u64,
}

#[derive(Debug)]
struct MemoryTicket {
    /// `None` if the assignment outlives its ticket.
    data: Option<Bytes>,
    created: i64,
    expiry: Timestamp,
    assignment: Option<Bytes>,
    /// Hides the assignment until the match is recorded. If the process dies before that, no player has seen it.
    is_hidden: bool,
    /// The players who see the ticket: several if it is a party's.
    owners: Vec<Owner>,
}

impl MemoryTicket {
    fn to_stored(&self) -> StoredTicket {
        StoredTicket { data: self.data.clone(), assignment: self.visible_assignment().cloned() }
    }

    fn visible_assignment(&self) -> Option<&Bytes> {
        self.assignment.as_ref().filter(|_| !self.is_hidden)
    }
}

#[derive(Debug)]
struct MemoryBatch {
    matches: Bytes,
    since: Timestamp,
    tickets: Vec<TicketId>,
}

impl State {
    /// Removes expired tickets. Returns how many of them were still in matchmaking.
    fn expire(&mut self, now: Timestamp) -> u64 {
        let mut lost = 0;
        while let Some((expiry, id)) = self.expiry.first().cloned() {
            if expiry > now {
                break;
            }
            lost += u64::from(self.forget(&id));
        }
        lost
    }

    /// Adds a ticket. An existing ticket stays unchanged.
    fn insert(&mut self, ticket: NewTicket, now: Timestamp) {
        if self.tickets.contains_key(&ticket.id) {
            return;
        }
        let (expiry, created) = (now.after(ticket.ttl), ticket.created.micros());
        self.expiry.insert((expiry, ticket.id.clone()));
        self.queue.insert((created, ticket.id.clone()));
        self.changed(ChangeKind::Created, [&ticket.id]);
        let stored = MemoryTicket {
            data: Some(ticket.data),
            created,
            expiry,
            assignment: None,
            is_hidden: false,
            owners: Vec::new(),
        };
        self.tickets.insert(ticket.id, stored);
    }

    /// Removes a ticket. Returns whether it was in matchmaking.
    fn forget(&mut self, id: &TicketId) -> bool {
        let indexed = self.deindex(id);
        self.clear_owners(id);
        if let Some(stored) = self.tickets.remove(id) {
            self.expiry.remove(&(stored.expiry, id.clone()));
        }
        indexed
    }

    fn deindex(&mut self, id: &TicketId) -> bool {
        let was_pending = self.pending.remove(id).is_some();
        let indexed =
            self.tickets.get(id).is_some_and(|stored| self.queue.remove(&(stored.created, id.clone())));
        if was_pending || indexed {
            self.changed(ChangeKind::Left, [id]);
        }
        indexed
    }

    fn is_indexed(&self, id: &TicketId) -> bool {
        self.tickets.get(id).is_some_and(|stored| self.queue.contains(&(stored.created, id.clone())))
    }

    fn outcome(&self, group: &AssignmentGroup, check: bool) -> AssignOutcome {
        if group.fence.is_some_and(|id| self.abandoned.contains_key(&id)) {
            return AssignOutcome::Abandoned;
        }
        let obstacle = |id: &TicketId| {
            let assigned = self.tickets.get(id).is_some_and(|stored| stored.assignment.is_some());
            let held = self.pending.get(id);
            let is_lost = group.claim.is_some_and(|claim| held != Some(&claim));
            if assigned || check && !self.is_indexed(id) || check && is_lost && held.is_none() {
                Some(AssignOutcome::Refused(id.clone()))
            } else {
                (is_lost && held.is_some()).then(|| AssignOutcome::Stale(id.clone()))
            }
        };
        group.tickets.iter().find_map(obstacle).unwrap_or(AssignOutcome::Assigned)
    }
}

impl Memory {
    pub(super) fn new(rules: Rules, clock: Clock, metrics: Metrics) -> Self {
        Self {
            rules,
            clock,
            metrics,
            state: Arc::default(),
            events: broadcast::channel(MAX_LAG).0,
            created: Arc::default(),
            notified: Arc::default(),
        }
    }

    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Locks the state, after removing expired tickets.
    fn state(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.expire_changes(now);
        self.metrics.repaired.inc_by(state.expire(now));
        (state, now)
    }

    fn publish(&self, event: TicketEvent) {
        // An error means that there are no subscribers.
        let _ = self.events.send(event);
    }

    pub(super) async fn create(&self, ticket: NewTicket) -> Result<(), Error> {
        let (mut state, now) = self.state();
        state.insert(ticket, now);
        drop(state);
        self.created.notify_one();
        Ok(())
    }

    pub(super) async fn find(&self, id: &TicketId) -> Result<StoredTicket, Error> {
        let (state, _) = self.state();
        Ok(state.tickets.get(id).map(MemoryTicket::to_stored).unwrap_or_default())
    }

    pub(super) async fn watch_states(&self, ids: &[TicketId]) -> Result<Vec<WatchState>, Error> {
        let (state, _) = self.state();
        let look = |id| match state.tickets.get(id) {
            None => WatchState::Gone,
            Some(stored) => stored
                .visible_assignment()
                .map_or(WatchState::Waiting, |assignment| WatchState::Assigned(assignment.clone())),
        };
        Ok(ids.iter().map(look).collect())
    }

    pub(super) async fn delete(&self, id: &TicketId) -> Result<DeleteOutcome, Error> {
        loop {
            let notified = self.notified.notified();
            tokio::pin!(notified);
            // Subscribe before the check, or a notification between check and wait would be lost.
            notified.as_mut().enable();
            {
                let (mut state, now) = self.state();
                match state.tickets.get(id) {
                    None => return Ok(DeleteOutcome::NotFound),
                    Some(stored) if stored.visible_assignment().is_some() => {
                        return Ok(DeleteOutcome::AlreadyAssigned);
                    }
                    Some(stored) if stored.is_hidden => {}
                    Some(_) => {
                        state.forget(id);
                        self.publish(TicketEvent::Gone(id.clone()));
                        self.leave_check(&mut state, now, id);
                        return Ok(DeleteOutcome::Deleted);
                    }
                }
            }
            // The ticket is assigned, but the caller must not learn that before the match is recorded.
            notified.await;
        }
    }

    pub(super) async fn deindex(&self, id: &TicketId) -> Result<(), Error> {
        self.state().0.deindex(id);
        Ok(())
    }

    pub(super) async fn fetch(
        &self,
        _: &EngineName,
        limit: usize,
        joined: Option<Claim>,
    ) -> Result<FetchedTickets, Error> {
        let (mut state, now) = self.state();
        let waiting = state.queue.len() as u64;
        if state.unrecorded >= self.rules.max_unrecorded {
            let claim = joined.unwrap_or_default();
            return Ok(FetchedTickets { waiting, claim, is_held_back: true, ids: Vec::new() });
        }
        let active = state.queue.iter().map(|(_, id)| id).filter(|id| !self.is_claimed(&state, id, now));
        let ids: Vec<TicketId> = active.take(limit).cloned().collect();
        let claim = match joined {
            Some(joined) => joined,
            None if ids.is_empty() => Claim::default(),
            None => state.new_claim(false, now),
        };
        state.pending.extend(ids.iter().map(|id| (id.clone(), claim)));
        state.changed(ChangeKind::Pending(claim.second() * 1000), &ids);
        Ok(FetchedTickets { ids, claim, waiting, is_held_back: false })
    }

    pub(super) async fn read(&self, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        let (state, _) = self.state();
        Ok(ids.iter().map(|id| state.tickets.get(id).and_then(|stored| stored.data.clone())).collect())
    }

    pub(super) async fn assign(&self, groups: &[AssignmentGroup]) -> Result<AssignResult, Error> {
        let (mut state, now) = self.state();
        let expiry = now.after(self.rules.assigned_ttl);
        let mut outcomes = Vec::with_capacity(groups.len());
        let (mut matches, mut tickets) = (Vec::new(), Vec::new());
        for group in groups {
            let outcome = state.outcome(group, self.rules.check_tickets);
            if outcome == AssignOutcome::Assigned {
                // A shared assignment is repeated for all tickets.
                let assignments = group.assignments.all().iter();
                for (id, assignment) in group.tickets.iter().zip(assignments.cycle()) {
                    // A planted fault leaves the ticket in the queue, so that it gets into a second match.
                    if fault::is_planted("matchmaking.double_assignment") {
                        state.pending.remove(id);
                        continue;
                    }
                    state.assign(id, assignment, expiry);
                }
                matches.extend_from_slice(&group.encoded_match);
                tickets.extend_from_slice(&group.tickets);
                if let Some(new) = &group.room {
                    state.insert_room(new, now, self.rules.backfill_expiry());
                }
            }
            outcomes.push(outcome);
        }
        let is_assigned = outcomes.contains(&AssignOutcome::Assigned);
        let batches = is_assigned.then(|| state.add_batch(matches.into(), tickets, now));
        Ok(AssignResult { outcomes, batches: Vec::from_iter(batches) })
    }

    pub(super) async fn notify<'a>(
        &self,
        batches: &'a [UnrecordedBatch],
        after: AfterNotify,
    ) -> Result<Vec<&'a UnrecordedBatch>, Error> {
        let (mut state, _) = self.state();
        for batch in batches {
            let Some(number) = batch.number() else { continue };
            if !state.make_visible(number) {
                continue;
            }
            if after != AfterNotify::Keep {
                state.remove(number);
            }
            self.publish(TicketEvent::Assigned(batch.matches.clone()));
        }
        drop(state);
        self.notified.notify_waiters();
        Ok(batches.iter().filter(|_| after != AfterNotify::Keep).collect())
    }

    pub(super) async fn mark_abandoned(&self, ids: &[MatchId]) -> Result<(), Error> {
        let (mut state, now) = self.state();
        state.abandoned.retain(|_, until| *until > now);
        state.abandoned.extend(ids.iter().map(|id| (*id, now.after(ABANDONED_MARK_TTL))));
        Ok(())
    }

    pub(super) async fn unrecorded_matches(&self) -> Result<Vec<Bytes>, Error> {
        Ok(self.state().0.batches.values().map(|batch| batch.matches.clone()).collect())
    }

    pub(super) async fn ticket_events(&self) -> Result<BoxStream<'static, TicketEvent>, Error> {
        let receiver = self.events.subscribe();
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Ok(event) => Some((event, receiver)),
                Err(broadcast::error::RecvError::Lagged(_)) => Some((TicketEvent::Gap, receiver)),
                Err(broadcast::error::RecvError::Closed) => None,
            }
        });
        Ok(stream.boxed())
    }

    pub(super) async fn listen_for_wakes(&self, _: &EngineName, wake: &Notify) -> Result<(), Error> {
        loop {
            self.created.notified().await;
            wake.notify_one();
        }
    }

    pub(super) async fn claim_unrecorded(
        &self,
        consumer: &str,
        max: usize,
        older_than: Duration,
        range: BatchRange<'_>,
    ) -> Result<Vec<UnrecordedBatch>, Error> {
        let number = |key: Option<&str>| key.and_then(|key| key.parse::<u64>().ok());
        let first = number(range.after).map_or(Bound::Unbounded, Bound::Excluded);
        let last = number(range.up_to).unwrap_or(u64::MAX);
        let (mut state, now) = self.state();
        if state.recovery_claim.as_ref().is_some_and(|(by, until)| by != consumer && *until > now) {
            return Ok(Vec::new());
        }
        let batches = state.batches.range((first, Bound::Unbounded));
        let batches: Vec<UnrecordedBatch> = batches
            .take_while(|(number, _)| **number <= last)
            .filter(|(_, batch)| now.distance(batch.since) >= older_than)
            .take(max)
            .map(|(number, batch)| UnrecordedBatch {
                key: number.to_string(),
                matches: batch.matches.clone(),
            })
            .collect();
        if !batches.is_empty() {
            state.recovery_claim = Some((consumer.to_owned(), now.after(RECOVERY_LEASE)));
        } else if range.after.is_none() {
            state.recovery_claim = None;
        }
        Ok(batches)
    }

    pub(super) async fn unrecorded_size(&self) -> Result<(u64, u64), Error> {
        let (state, _) = self.state();
        Ok((state.batches.len() as u64, state.unrecorded))
    }

    pub(super) async fn list(&self, limit: usize) -> Result<(Vec<TicketId>, u64), Error> {
        let (state, _) = self.state();
        let ids = state.queue.iter().take(limit).map(|(_, id)| id.clone()).collect();
        Ok((ids, state.queue.len() as u64))
    }

    pub(super) async fn waiting_times(&self, bounds: &[i64], oldest: usize) -> Result<WaitingTimes, Error> {
        let (state, now) = self.state();
        let mut ranges = vec![0; bounds.len() + 1];
        for (created, _) in &state.queue {
            ranges[bounds.partition_point(|bound| bound <= created)] += 1;
        }
        let live = |claim: &&Claim| self.is_live(**claim, now);
        Ok(WaitingTimes {
            tickets: state.queue.len() as u64,
            pending: state.pending.values().filter(live).count() as u64,
            ranges,
            oldest: state.queue.iter().take(oldest).map(|(created, id)| (id.clone(), *created)).collect(),
        })
    }

    pub(super) async fn set_assigner_failure(
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
            now.distance(Timestamp::from_millis(failure.failed_at)) < FAILURE_RETENTION
        };
        state.assigner_failures.retain(|_, failure| is_recent(failure));
        Ok(state.assigner_failures.values().cloned().collect())
    }

    pub(super) async fn status(&self, id: &TicketId) -> Result<TicketStatus, Error> {
        let found = self.find(id).await?;
        let (state, now) = self.state();
        let claim = state.pending.get(id).copied().filter(|claim| self.is_live(*claim, now));
        Ok(TicketStatus {
            found,
            is_indexed: state.is_indexed(id),
            // The claim of a ready check begins at its deadline.
            pending_since: claim.map(|claim| claim.second().min(now.as_millis() / 1000)),
            holder: claim.and_then(|claim| state.holder(claim)),
            ttl: state.tickets.get(id).map(|stored| stored.expiry.distance(now)),
        })
    }
}

impl UnrecordedBatch {
    fn number(&self) -> Option<u64> {
        self.key.parse().ok()
    }
}

impl State {
    /// Makes the assignments of a batch visible. Returns false if there is no such batch.
    fn make_visible(&mut self, number: u64) -> bool {
        let Some(batch) = self.batches.get(&number) else { return false };
        for id in &batch.tickets {
            if let Some(stored) = self.tickets.get_mut(id) {
                stored.is_hidden = false;
            }
        }
        true
    }

    fn add_batch(&mut self, matches: Bytes, tickets: Vec<TicketId>, now: Timestamp) -> UnrecordedBatch {
        self.last_batch += 1;
        self.unrecorded += matches.len() as u64;
        let batch = MemoryBatch { matches: matches.clone(), since: now, tickets };
        self.batches.insert(self.last_batch, batch);
        UnrecordedBatch { key: self.last_batch.to_string(), matches }
    }

    fn remove(&mut self, number: u64) {
        if let Some(batch) = self.batches.remove(&number) {
            self.unrecorded -= batch.matches.len() as u64;
        }
    }

    fn assign(&mut self, id: &TicketId, assignment: &Bytes, expiry: Timestamp) {
        self.deindex(id);
        // Without the check the ticket may already be gone. Its player still learns where to connect.
        let stored = self.tickets.entry(id.clone()).or_insert_with(|| MemoryTicket {
            data: None,
            created: 0,
            expiry,
            assignment: None,
            is_hidden: false,
            owners: Vec::new(),
        });
        let before = std::mem::replace(&mut stored.expiry, expiry);
        stored.assignment = Some(assignment.clone());
        stored.is_hidden = true;
        self.expiry.remove(&(before, id.clone()));
        self.expiry.insert((expiry, id.clone()));
        self.clear_due(id);
    }
}
