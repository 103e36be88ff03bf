//! Backfills of rule sets in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Timestamp;
use bytes::Bytes;

use super::backfills::MemoryBackfill;
use super::{Memory, State};
use crate::error::Error;
use crate::model::{BackfillId, TicketId};
use crate::store::changes::ChangeKind;
use crate::store::{BackfillData, NewRoom, OpenRoom, RoomJoin, RoomOutcome, Seat};

impl State {
    pub(super) fn insert_room(&mut self, new: &NewRoom, now: Timestamp, expiry: Duration) {
        let NewRoom { id, fixed, room, seats } = new.clone();
        let (fields, persistent) = (Bytes::new(), Bytes::new());
        let data = BackfillData { generation: 1, fixed, fields, persistent, room: Some(Box::new(room)) };
        self.backfills.insert(id, MemoryBackfill::new(data, seats, now));
        self.backfill_kept(&new.id, now, expiry);
    }

    /// Returns what prevents tickets from joining.
    fn obstacle(&self, join: &RoomJoin) -> Option<RoomOutcome> {
        let is_ours = |id| self.pending.get(id) == Some(&join.claim);
        let (id, _) = join.seats.iter().find(|(id, _)| !is_ours(id) || !self.is_indexed(id))?;
        Some(match self.pending.get(id) {
            Some(claim) if *claim != join.claim => RoomOutcome::Stale(id.clone()),
            _ => RoomOutcome::Refused(id.clone()),
        })
    }
}

impl Memory {
    pub(in crate::store) async fn open_rooms(&self, ids: &[BackfillId]) -> Result<Vec<OpenRoom>, Error> {
        let (mut state, now) = self.state();
        let expiry = self.rules.backfill_expiry();
        let mut open = Vec::new();
        for id in ids {
            state.waiting_tickets(id);
            let Some(backfill) = state.backfills.get(id).filter(|found| !found.is_expired(now, expiry))
            else {
                continue;
            };
            let BackfillData { generation, room: Some(room), .. } = &backfill.data else { continue };
            let (generation, room, seats) = (*generation, (**room).clone(), backfill.seats.clone());
            open.push(OpenRoom { id: id.clone(), generation, room, seats });
        }
        Ok(open)
    }

    pub(in crate::store) async fn join_rooms(&self, joins: &[RoomJoin]) -> Result<Vec<RoomOutcome>, Error> {
        let (mut state, now) = self.state();
        let expiry = self.rules.backfill_expiry();
        let mut outcomes = Vec::with_capacity(joins.len());
        for join in joins {
            let is_current = |found: &MemoryBackfill| {
                found.data.generation == join.generation
                    && found.data.room.is_some()
                    && !found.is_expired(now, expiry)
            };
            if !state.backfills.get(&join.id).is_some_and(is_current) {
                outcomes.push(RoomOutcome::StaleBackfill);
                continue;
            }
            if let Some(obstacle) = state.obstacle(join) {
                outcomes.push(obstacle);
                continue;
            }
            // One of them may have left this backfill before.
            state.waiting_tickets(&join.id);
            let claim = state.new_claim(false, now);
            state.pending.extend(join.seats.iter().map(|(id, _)| (id.clone(), claim)));
            state.changed(ChangeKind::Pending(claim.second() * 1000), join.seats.iter().map(|(id, _)| id));
            if let Some(backfill) = state.backfills.get_mut(&join.id) {
                backfill.data.generation += 1;
                for (id, seat) in &join.seats {
                    backfill.take_seat(id, seat);
                    backfill.waiting.insert(id.clone(), claim);
                }
            }
            state.backfill_changed(ChangeKind::BackfillChanged, &join.id);
            outcomes.push(RoomOutcome::Joined);
        }
        Ok(outcomes)
    }
}

impl MemoryBackfill {
    pub(super) fn new(data: BackfillData, seats: BTreeMap<TicketId, Seat>, now: Timestamp) -> Self {
        let (waiting, unlisted) = Default::default();
        Self { data, acknowledged: now, waiting, seats, unlisted }
    }

    fn take_seat(&mut self, id: &TicketId, seat: &Seat) {
        if let Some(room) = &mut self.data.room {
            room.take(seat);
        }
        self.seats.insert(id.clone(), seat.clone());
    }

    /// Forgets a ticket that waited and has left, and opens its places again. An assigned ticket keeps its seat.
    pub(super) fn leave(&mut self, id: &TicketId) {
        if self.waiting.remove(id).is_none() {
            return;
        }
        if let (Some(seat), Some(room)) = (self.seats.remove(id), &mut self.data.room) {
            room.leave(&seat);
        }
    }
}
