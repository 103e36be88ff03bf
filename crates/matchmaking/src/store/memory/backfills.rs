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
    AcknowledgeOutcome, AcknowledgedBackfill, AssignBackfillOutcome, BackfillChange, BackfillData,
    BackfillStatus, Claim, ExpiredBackfills, NewBackfill, UpdateBackfillOutcome,
};

#[derive(Debug)]
pub(super) struct MemoryBackfill {
    data: BackfillData,
    acknowledged: Timestamp,
    /// The tickets that wait for the game server, each with the claim that holds it.
    waiting: BTreeMap<TicketId, Claim>,
    /// Assigned tickets that no answer has listed yet.
    unlisted: BTreeSet<TicketId>,
}

impl MemoryBackfill {
    fn is_expired(&self, now: Timestamp, expiry: Duration) -> bool {
        now.distance(self.acknowledged) >= expiry
    }
}

impl State {
    fn insert_backfill(&mut self, backfill: &NewBackfill, now: Timestamp) {
        let NewBackfill { id, fixed, fields, persistent } = backfill.clone();
        let data = BackfillData { generation: 1, fixed, fields, persistent };
        let (waiting, unlisted) = Default::default();
        self.backfills.insert(id, MemoryBackfill { data, acknowledged: now, waiting, unlisted });
    }

    /// Returns the tickets that are still pending under the claim that the backfill knows, and forgets the others.
    fn waiting_tickets(&mut self, id: &BackfillId) -> Vec<TicketId> {
        let Some(backfill) = self.backfills.get_mut(id) else { return Vec::new() };
        backfill.waiting.retain(|ticket, claim| self.pending.get(ticket) == Some(claim));
        backfill.waiting.keys().cloned().collect()
    }

    /// Makes the waiting tickets active again. Returns how many there were.
    fn release_waiting(&mut self, id: &BackfillId) -> usize {
        let waiting = self.waiting_tickets(id);
        for ticket in &waiting {
            self.pending.remove(ticket);
        }
        self.changed(ChangeKind::Released, &waiting);
        if let Some(backfill) = self.backfills.get_mut(id) {
            backfill.waiting.clear();
        }
        waiting.len()
    }

    /// Returns whether a claimed match may make this change.
    pub(super) fn permits(&self, change: &BackfillChange, now: Timestamp, expiry: Duration) -> bool {
        let existing = self.backfills.get(change.id());
        match change {
            BackfillChange::Create(_) => existing.is_none(),
            BackfillChange::Update { generation, .. } => existing.is_some_and(|backfill| {
                backfill.data.generation == *generation && !backfill.is_expired(now, expiry)
            }),
        }
    }

    /// Makes a permitted change, and adds these claimed tickets to the backfill.
    pub(super) fn apply(&mut self, change: &BackfillChange, tickets: &[TicketId], now: Timestamp) {
        if let BackfillChange::Create(backfill) = change {
            self.insert_backfill(backfill, now);
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
        state.insert_backfill(backfill, now);
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
        let Some(backfill) = state.backfills.get_mut(id) else { return Ok(UpdateBackfillOutcome::NotFound) };
        let BackfillData { generation, fixed, .. } = &backfill.data;
        backfill.data = BackfillData {
            generation: generation + 1,
            fixed: fixed.clone(),
            fields: fields.clone(),
            persistent: persistent.clone(),
        };
        Ok(UpdateBackfillOutcome::Updated(backfill.data.clone()))
    }

    pub(in crate::store) async fn delete_backfill(&self, id: &BackfillId) -> Result<bool, Error> {
        let (mut state, _) = self.state();
        state.release_waiting(id);
        Ok(state.backfills.remove(id).is_some())
    }

    pub(in crate::store) async fn acknowledge_backfill(
        &self,
        id: &BackfillId,
    ) -> Result<AcknowledgeOutcome, Error> {
        let (mut state, now) = self.state();
        let waiting = state.waiting_tickets(id);
        let Some(backfill) = state.backfills.get_mut(id) else { return Ok(AcknowledgeOutcome::NotFound) };
        if backfill.is_expired(now, self.rules.backfill_expiry()) {
            return Ok(AcknowledgeOutcome::Expired);
        }
        backfill.acknowledged = now;
        let (data, unlisted) = (backfill.data.clone(), backfill.unlisted.iter().cloned().collect());
        Ok(AcknowledgeOutcome::Acknowledged(AcknowledgedBackfill { data, waiting, unlisted }))
    }

    pub(in crate::store) async fn assign_backfill(
        &self,
        id: &BackfillId,
        tickets: &[TicketId],
        assignment: &Bytes,
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
            backfill.waiting.retain(|ticket, _| !left.contains(ticket));
        }
        if !left.is_empty() {
            return Ok(AssignBackfillOutcome::Refused(left));
        }
        let expiry = now.after(self.rules.assigned_ttl);
        for ticket in tickets {
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
    ) -> Result<(), Error> {
        if let Some(backfill) = self.state().0.backfills.get_mut(id) {
            backfill.unlisted.retain(|ticket| !tickets.contains(ticket));
        }
        Ok(())
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
            tickets += state.release_waiting(id);
            state.backfills.remove(id);
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
