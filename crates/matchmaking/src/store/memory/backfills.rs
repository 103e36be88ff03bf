//! Backfills in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::Timestamp;
use bytes::Bytes;

use super::{Memory, State};
use crate::error::Error;
use crate::model::{BackfillId, TicketId};
use crate::store::changes::ChangeKind;
use crate::store::{
    AcknowledgeOutcome, AcknowledgedBackfill, AssignBackfillOutcome, Assignments, BackfillChange,
    BackfillData, BackfillStatus, Claim, ExpiredBackfills, NewBackfill, Seat, UpdateBackfillOutcome,
};

#[derive(Debug)]
pub(super) struct MemoryBackfill {
    pub(super) data: BackfillData,
    pub(super) acknowledged: Timestamp,
    /// The tickets that wait for the game server, each with the claim that holds it.
    pub(super) waiting: BTreeMap<TicketId, Claim>,
    /// The seats of a match that a rule set fills, also of tickets that wait.
    pub(super) seats: BTreeMap<TicketId, Seat>,
    /// Assigned tickets that no answer has listed yet.
    pub(super) unlisted: BTreeSet<TicketId>,
}

impl MemoryBackfill {
    pub(super) fn is_expired(&self, now: Timestamp, expiry: Duration) -> bool {
        self.expires(expiry) <= now
    }

    pub(super) fn expires(&self, expiry: Duration) -> Timestamp {
        self.acknowledged.after(expiry)
    }
}

impl State {
    fn insert_backfill(&mut self, backfill: &NewBackfill, now: Timestamp, expiry: Duration) {
        let NewBackfill { id, fixed, fields, persistent } = backfill.clone();
        let data = BackfillData { generation: 1, fixed, fields, persistent, room: None };
        self.backfills.insert(id, MemoryBackfill::new(data, BTreeMap::new(), now));
        self.backfill_kept(&backfill.id, now, expiry);
    }

    pub(super) fn backfill_kept(&mut self, id: &BackfillId, now: Timestamp, expiry: Duration) {
        self.backfill_changed(ChangeKind::BackfillKept(now.after(expiry).into()), id);
    }

    /// Makes the waiting tickets of a backfill active again and deletes it. Returns how many tickets there were, unless
    /// there is no such backfill.
    fn remove_backfill(&mut self, id: &BackfillId) -> Option<usize> {
        let released = self.release_waiting(id);
        self.backfills.remove(id)?;
        self.backfill_changed(ChangeKind::BackfillDeleted, id);
        Some(released)
    }

    /// Returns the tickets that are still pending under the claim that the backfill knows, and forgets the others.
    pub(super) fn waiting_tickets(&mut self, id: &BackfillId) -> Vec<TicketId> {
        let Some(backfill) = self.backfills.get_mut(id) else { return Vec::new() };
        let has_left = |(ticket, claim): &(&TicketId, &Claim)| self.pending.get(*ticket) != Some(*claim);
        let left: Vec<TicketId> =
            backfill.waiting.iter().filter(has_left).map(|(id, _)| id.clone()).collect();
        left.iter().for_each(|ticket| backfill.leave(ticket));
        let (waiting, has_opened) =
            (backfill.waiting.keys().cloned().collect(), backfill.data.room.is_some() && !left.is_empty());
        if has_opened {
            self.backfill_changed(ChangeKind::BackfillChanged, id);
        }
        waiting
    }

    /// Makes the waiting tickets active again. Returns how many there were.
    fn release_waiting(&mut self, id: &BackfillId) -> usize {
        let waiting = self.waiting_tickets(id);
        for ticket in &waiting {
            self.pending.remove(ticket);
        }
        self.changed(ChangeKind::Released, &waiting);
        if let Some(backfill) = self.backfills.get_mut(id) {
            waiting.iter().for_each(|ticket| backfill.leave(ticket));
            if backfill.data.room.is_some() && !waiting.is_empty() {
                self.backfill_changed(ChangeKind::BackfillChanged, id);
            }
        }
        waiting.len()
    }

    /// Returns whether a claimed match may make this change.
    pub(super) fn permits(&self, change: &BackfillChange, now: Timestamp, expiry: Duration) -> bool {
        let existing = self.backfills.get(change.id());
        match change {
            BackfillChange::Create(_) => existing.is_none(),
            BackfillChange::Update { generation, .. } => existing.is_some_and(|backfill| {
                let data = &backfill.data;
                // Engines alone fill those of rule sets.
                data.generation == *generation && data.room.is_none() && !backfill.is_expired(now, expiry)
            }),
        }
    }

    /// Makes a permitted change, and adds these claimed tickets to the backfill.
    pub(super) fn apply(
        &mut self,
        change: &BackfillChange,
        tickets: &[TicketId],
        now: Timestamp,
        expiry: Duration,
    ) {
        match change {
            BackfillChange::Create(backfill) => self.insert_backfill(backfill, now, expiry),
            BackfillChange::Update { id, .. } => self.backfill_changed(ChangeKind::BackfillChanged, id),
        }
        let Some(backfill) = self.backfills.get_mut(change.id()) else { return };
        if let BackfillChange::Update { fields, .. } = change {
            backfill.data.generation += 1;
            backfill.data.fields = fields.clone();
        }
        let claims = tickets.iter().filter_map(|id| Some((id.clone(), *self.pending.get(id)?)));
        backfill.waiting.extend(claims);
    }
}

impl Memory {
    pub(in crate::store) async fn create_backfill(&self, backfill: &NewBackfill) -> Result<bool, Error> {
        let (mut state, now) = self.state();
        if let Some(existing) = state.backfills.get(&backfill.id) {
            return Ok(existing.data.fixed == backfill.fixed);
        }
        state.insert_backfill(backfill, now, self.rules.backfill_expiry());
        Ok(true)
    }

    pub(in crate::store) async fn read_backfills(
        &self,
        ids: &[BackfillId],
    ) -> Result<Vec<Option<BackfillData>>, Error> {
        let (state, _) = self.state();
        Ok(ids.iter().map(|id| state.backfills.get(id).map(|backfill| backfill.data.clone())).collect())
    }

    pub(in crate::store) async fn update_backfill(
        &self,
        id: &BackfillId,
        fields: &Bytes,
        persistent: &Bytes,
    ) -> Result<UpdateBackfillOutcome, Error> {
        let (mut state, now) = self.state();
        let expiry = self.rules.backfill_expiry();
        match state.backfills.get(id) {
            None => return Ok(UpdateBackfillOutcome::NotFound),
            Some(backfill) if backfill.is_expired(now, expiry) => return Ok(UpdateBackfillOutcome::Expired),
            Some(_) => {}
        }
        state.release_waiting(id);
        state.backfill_changed(ChangeKind::BackfillChanged, id);
        let Some(backfill) = state.backfills.get_mut(id) else { return Ok(UpdateBackfillOutcome::NotFound) };
        backfill.data.generation += 1;
        backfill.data.fields = fields.clone();
        backfill.data.persistent = persistent.clone();
        Ok(UpdateBackfillOutcome::Updated(backfill.data.clone()))
    }

    pub(in crate::store) async fn delete_backfill(&self, id: &BackfillId) -> Result<bool, Error> {
        let (mut state, _) = self.state();
        Ok(state.remove_backfill(id).is_some())
    }

    pub(in crate::store) async fn acknowledge_backfill(
        &self,
        id: &BackfillId,
    ) -> Result<AcknowledgeOutcome, Error> {
        let (mut state, now) = self.state();
        let waiting = state.waiting_tickets(id);
        let Some(backfill) = state.backfills.get_mut(id) else { return Ok(AcknowledgeOutcome::NotFound) };
        let expiry = self.rules.backfill_expiry();
        if backfill.is_expired(now, expiry) {
            return Ok(AcknowledgeOutcome::Expired);
        }
        backfill.acknowledged = now;
        let (data, unlisted) = (backfill.data.clone(), backfill.unlisted.iter().cloned().collect());
        let seat = |id: &TicketId| Some((id.clone(), backfill.seats.get(id)?.clone()));
        let seats = waiting.iter().filter_map(seat).collect();
        state.backfill_kept(id, now, expiry);
        Ok(AcknowledgeOutcome::Acknowledged(AcknowledgedBackfill { data, waiting, seats, unlisted }))
    }

    pub(in crate::store) async fn assign_backfill(
        &self,
        id: &BackfillId,
        tickets: &[TicketId],
        assignments: &Assignments,
        encoded_match: &Bytes,
    ) -> Result<AssignBackfillOutcome, Error> {
        let (mut state, now) = self.state();
        let waiting: BTreeSet<TicketId> = state.waiting_tickets(id).into_iter().collect();
        let is_ours = |ticket: &TicketId| {
            let is_unassigned = state.tickets.get(ticket).is_some_and(|stored| stored.assignment.is_none());
            waiting.contains(ticket) && is_unassigned && state.is_indexed(ticket)
        };
        let left: Vec<TicketId> = tickets.iter().filter(|ticket| !is_ours(ticket)).cloned().collect();
        if let Some(backfill) = state.backfills.get_mut(id) {
            left.iter().for_each(|ticket| backfill.leave(ticket));
        }
        if !left.is_empty() {
            return Ok(AssignBackfillOutcome::Refused(left));
        }
        let expiry = now.after(self.rules.assigned_ttl);
        for (ticket, assignment) in tickets.iter().zip(assignments.all().iter().cycle()) {
            state.assign(ticket, assignment, expiry);
            if let Some(backfill) = state.backfills.get_mut(id) {
                backfill.waiting.remove(ticket);
                backfill.unlisted.insert(ticket.clone());
            }
        }
        Ok(AssignBackfillOutcome::Assigned(state.add_batch(encoded_match.clone(), tickets.to_vec(), now)))
    }

    pub(in crate::store) async fn mark_listed(
        &self,
        id: &BackfillId,
        tickets: &[TicketId],
    ) -> Result<bool, Error> {
        let (mut state, _) = self.state();
        let waiting = state.waiting_tickets(id);
        let Some(backfill) = state.backfills.get_mut(id) else { return Ok(false) };
        backfill.unlisted.retain(|ticket| !tickets.contains(ticket));
        let is_done = waiting.is_empty() && backfill.unlisted.is_empty() && backfill.data.is_full();
        if is_done {
            state.backfills.remove(id);
            state.backfill_changed(ChangeKind::BackfillDeleted, id);
        }
        Ok(is_done)
    }

    pub(in crate::store) async fn live_backfills(&self) -> Result<Vec<BackfillId>, Error> {
        let (state, now) = self.state();
        let expiry = self.rules.backfill_expiry();
        let live = state.backfills.iter().filter(|(_, backfill)| !backfill.is_expired(now, expiry));
        let mut ids: Vec<BackfillId> = live.map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    pub(in crate::store) async fn list_backfills(
        &self,
        limit: usize,
    ) -> Result<(Vec<BackfillId>, u64), Error> {
        let mut ids = self.live_backfills().await?;
        let count = ids.len() as u64;
        ids.truncate(limit);
        Ok((ids, count))
    }

    pub(in crate::store) async fn expire_backfills(&self) -> Result<ExpiredBackfills, Error> {
        let (mut state, now) = self.state();
        let expiry = self.rules.backfill_expiry();
        let expired = state.backfills.iter().filter(|(_, backfill)| backfill.is_expired(now, expiry));
        let expired: Vec<BackfillId> = expired.map(|(id, _)| id.clone()).collect();
        let mut tickets = 0;
        for id in &expired {
            tickets += state.remove_backfill(id).unwrap_or_default();
        }
        let left = state.backfills.len() as u64;
        Ok(ExpiredBackfills { backfills: expired.len(), tickets, has_more: false, left })
    }

    pub(in crate::store) async fn backfill_status(
        &self,
        id: &BackfillId,
    ) -> Result<Option<BackfillStatus>, Error> {
        let (state, now) = self.state();
        let expiry = self.rules.backfill_expiry();
        Ok(state.backfills.get(id).map(|backfill| BackfillStatus {
            data: backfill.data.clone(),
            acknowledged_at: Some(backfill.acknowledged),
            is_expired: backfill.is_expired(now, expiry),
            waiting: {
                let held = backfill.waiting.iter();
                held.filter(|(id, claim)| state.pending.get(*id) == Some(*claim))
                    .map(|(id, _)| id.clone())
                    .collect()
            },
        }))
    }
}
