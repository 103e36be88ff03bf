//! Backfills of rule sets in Redis: fields of the backfill's hash, as JSON.

use std::collections::BTreeMap;

use bytes::Bytes;
use redis_store::Call;

use super::Redis;
use super::backfills::millis;
use super::scripts;
use crate::error::Error;
use crate::model::{BackfillId, TicketId};
use crate::store::{OpenRoom, Room, RoomJoin, RoomOutcome, Seat};

/// How many backfills one script reads. Each may have many seats.
const READ_AT_ONCE: usize = 100;

impl Redis {
    pub(in crate::store) async fn open_rooms(&self, ids: &[BackfillId]) -> Result<Vec<OpenRoom>, Error> {
        let mut open = Vec::new();
        for ids in ids.chunks(READ_AT_ONCE) {
            let own = std::iter::once(self.keys.backfill_acks());
            let own = own.chain(ids.iter().map(|id| self.keys.backfill(id)));
            let add = |step: &mut Call| step.arg(millis(self.rules.backfill_expiry())).end();
            let found: Vec<Vec<Bytes>> = self.step(&scripts::OPEN_BACKFILLS, own, add).await?;
            open.extend(ids.iter().zip(found).filter_map(|(id, parts)| read_open(id, &parts)));
        }
        Ok(open)
    }

    pub(in crate::store) async fn join_rooms(&self, joins: &[RoomJoin]) -> Result<Vec<RoomOutcome>, Error> {
        let mut outcomes = Vec::with_capacity(joins.len());
        for joins in super::claims::chunks(joins, |join| join.seats.len()) {
            outcomes.extend(self.join_chunk(joins).await?);
        }
        Ok(outcomes)
    }

    async fn join_chunk(&self, joins: &[RoomJoin]) -> Result<Vec<RoomOutcome>, Error> {
        let tickets = joins.iter().flat_map(|join| &join.seats).map(|(id, _)| self.keys.ticket(id));
        let own = [self.keys.claim_number(), self.keys.backfill_acks()].into_iter();
        let own = own.chain(joins.iter().map(|join| self.keys.backfill(&join.id))).chain(tickets);
        let add = |step: &mut Call| {
            let rules = &self.rules;
            step.arg(millis(rules.backfill_expiry())).arg(rules.pending_timeout.as_secs()).arg(joins.len());
            for RoomJoin { id: _, generation, claim, seats } in joins {
                step.arg(*generation).arg(claim.to_string()).arg(seats.len());
                seats.iter().for_each(|(_, seat)| step.arg(to_json(seat)).end());
            }
        };
        let replies: Vec<(i64, bool)> = self.exclusive_step(&scripts::JOIN_BACKFILLS, own, add).await?;
        let outcome = |(join, (obstacle, is_other)): (&RoomJoin, (i64, bool))| {
            if obstacle == 0 {
                return RoomOutcome::Joined;
            }
            let at = usize::try_from(obstacle).ok().and_then(|position| position.checked_sub(1));
            match at.and_then(|at| join.seats.get(at)) {
                None => RoomOutcome::StaleBackfill,
                Some((id, _)) if is_other => RoomOutcome::Stale(id.clone()),
                Some((id, _)) => RoomOutcome::Refused(id.clone()),
            }
        };
        Ok(joins.iter().zip(replies).map(outcome).collect())
    }
}

pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Reads what made a match under way, and its teams. Returns none for the backfill of a Director.
pub(super) fn read_room(origin: &[u8], teams: &[u8]) -> Option<Box<Room>> {
    let (origin, teams) = (serde_json::from_slice(origin).ok()?, serde_json::from_slice(teams).ok()?);
    Some(Box::new(Room { origin, teams }))
}

pub(super) fn read_seat(seat: &[u8]) -> Option<Seat> {
    serde_json::from_slice(seat).ok()
}

/// Reads an item of the reply of `open_backfills.lua`. Returns none if a seat is unreadable: nobody may join then.
fn read_open(id: &BackfillId, parts: &[Bytes]) -> Option<OpenRoom> {
    let [generation, origin, teams, seats @ ..] = parts else { return None };
    let generation = std::str::from_utf8(generation).ok()?.parse().ok()?;
    let seat = |pair: &[Bytes]| {
        let [id, seat] = pair else { return None };
        Some((TicketId::parse(std::str::from_utf8(id).ok()?)?, read_seat(seat)?))
    };
    let seats: Option<BTreeMap<TicketId, Seat>> = seats.chunks(2).map(seat).collect();
    Some(OpenRoom { id: id.clone(), generation, room: *read_room(origin, teams)?, seats: seats? })
}
