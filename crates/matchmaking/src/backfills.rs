//! Backfills: matches under way that have room (docs/adr/0030).
//!
//! A match function asks for more tickets by returning a match with a backfill. Its tickets then wait until the game
//! server acknowledges the backfill, which assigns them. A game server that stops acknowledging loses its backfill, and
//! the tickets are released.
//!
//! An acknowledgement assigns tickets as an engine does: assigned in the store, recorded in SQL, then pushed. Repeating
//! it after a lost answer assigns nothing twice, and lists the tickets whose answer was interrupted.

pub(crate) mod admin;
mod cleaner;

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Clock;
use base::error::chain;
use buffa::{Message, MessageField};
use futures::future::try_join_all;
use proto::openmatch;
use runtime::fault;
use runtime::telemetry::TraceContext;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::{BackfillId, Moment, TicketId};
use crate::recorder::{self, MatchRecorder};
use crate::store::{
    AcknowledgeOutcome, AcknowledgedBackfill, AssignBackfillOutcome, Assignments, BackfillChange,
    BackfillData, Room, Seat, Store, UpdateBackfillOutcome,
};
use crate::wire;

pub use self::cleaner::BackfillCleaner;

/// How many tickets of a backfill are assigned in one step.
const ASSIGNED_AT_ONCE: usize = 500;

/// The use cases of game servers and match functions. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Backfills {
    store: Store,
    limits: BackfillLimits,
    clock: Clock,
    metrics: Metrics,
    recorder: Option<Arc<dyn MatchRecorder>>,
}

/// How large a backfill may be: as large as a ticket.
#[derive(Clone, Copy, Debug)]
pub struct BackfillLimits {
    /// The size of its encoded data, in bytes.
    pub max_size: usize,
    /// How many tags, and how many entries in each map, it may have.
    pub max_fields: usize,
}

/// A backfill in the proposal of a match function, read at this moment.
#[derive(Clone, Debug)]
pub struct ProposedBackfill {
    /// What claiming the match does.
    pub change: BackfillChange,
    /// The backfill that the claimed match is returned with: a new one complete, an existing one as proposed.
    pub returned: openmatch::Backfill,
}

impl ProposedBackfill {
    /// Reads the backfill of a proposal, a new one if it has no id. Fails if no backfill can have its id, or if it is too
    /// large.
    pub fn read(
        mut proposed: openmatch::Backfill,
        now: Moment,
        limits: BackfillLimits,
    ) -> Result<Self, Error> {
        limits.check(&proposed)?;
        if !proposed.id.is_empty() {
            let id = parse(&proposed.id)?;
            let (fields, _) = wire::backfill_parts(proposed.clone());
            let change = BackfillChange::Update { id, generation: proposed.generation, fields };
            return Ok(Self { change, returned: proposed });
        }
        let new = wire::new_backfill(BackfillId::generate(now), now, proposed.clone());
        proposed.id = new.id.to_string();
        proposed.create_time = MessageField::some(wire::timestamp(now));
        proposed.generation = 1;
        Ok(Self { change: BackfillChange::Create(new), returned: proposed })
    }
}

impl Backfills {
    pub fn new(store: Store, limits: BackfillLimits, clock: Clock, metrics: Metrics) -> Self {
        Self { store, limits, clock, metrics, recorder: None }
    }

    /// Sets the recorder that records matches before their players are notified. Without one, matches are not recorded.
    #[must_use]
    pub fn with_recorder(self, recorder: Arc<dyn MatchRecorder>) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Creates a backfill. Returns it with its id, its creation time and generation 1.
    pub async fn create(&self, backfill: Option<openmatch::Backfill>) -> Result<openmatch::Backfill, Error> {
        let backfill = backfill.ok_or_else(required)?;
        if backfill.create_time.is_set() {
            return Err(Error::Invalid("backfills cannot be created with create time set".to_owned()));
        }
        self.limits.check(&backfill)?;
        loop {
            let created = Moment::from(self.clock.now());
            let new = wire::new_backfill(BackfillId::generate(created), created, backfill.clone());
            // Another backfill has the id with a probability of 2^-64.
            if self.store.create_backfill(&new).await? {
                let data = BackfillData {
                    generation: 1,
                    fixed: new.fixed,
                    fields: new.fields,
                    persistent: new.persistent,
                    room: None,
                };
                return decode(&new.id, &data);
            }
        }
    }

    pub async fn get(&self, id: &str) -> Result<openmatch::Backfill, Error> {
        let id = parse(id)?;
        let found = self.store.read_backfills(std::slice::from_ref(&id)).await?.pop().flatten();
        decode(&id, &found.ok_or_else(|| not_found(&id))?)
    }

    /// Replaces search fields, extensions and persistent data, and releases the tickets that wait. The generation that
    /// the caller sends does not matter.
    pub async fn update(&self, backfill: Option<openmatch::Backfill>) -> Result<openmatch::Backfill, Error> {
        let backfill = backfill.ok_or_else(required)?;
        if backfill.id.is_empty() {
            return Err(Error::Invalid("backfill ID should exist".to_owned()));
        }
        let id = parse(&backfill.id)?;
        self.limits.check(&backfill)?;
        let (fields, persistent) = wire::backfill_parts(backfill);
        match self.store.update_backfill(&id, &fields, &persistent).await? {
            UpdateBackfillOutcome::Updated(data) => decode(&id, &data),
            UpdateBackfillOutcome::NotFound => Err(not_found(&id)),
            UpdateBackfillOutcome::Expired => Err(Error::BackfillExpired { call: "update", id }),
        }
    }

    /// Deletes a backfill and releases its tickets. Succeeds if it is already gone.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        require_id(id)?;
        match BackfillId::parse(id) {
            Some(id) => self.store.delete_backfill(&id).await.map(drop),
            None => Ok(()),
        }
    }

    /// Records that the game server of a backfill is alive, and assigns the waiting tickets to it. The answer lists
    /// them. It also lists tickets that an earlier call assigned if that call was interrupted before its answer.
    pub async fn acknowledge(
        &self,
        id: &str,
        assignment: Option<openmatch::Assignment>,
    ) -> Result<openmatch::AcknowledgeBackfillResponse, Error> {
        require_id(id)?;
        let assignment = assignment.ok_or_else(|| Error::Invalid(".Assignment is required".to_owned()))?;
        let id = parse(id)?;
        let acknowledged = match self.store.acknowledge_backfill(&id).await? {
            AcknowledgeOutcome::Acknowledged(acknowledged) => acknowledged,
            AcknowledgeOutcome::NotFound => return Err(not_found(&id)),
            AcknowledgeOutcome::Expired => return Err(Error::BackfillExpired { call: "acknowledge", id }),
        };
        self.metrics.backfills_acknowledged.inc();
        fault::point("matchmaking.backfill.acknowledged");
        let AcknowledgedBackfill { mut data, waiting, seats, unlisted: mut listed } = acknowledged;
        for waiting in waiting.chunks(ASSIGNED_AT_ONCE) {
            listed
                .extend(self.assign(&id, data.room.as_deref(), &seats, waiting.to_vec(), &assignment).await?);
        }
        if !waiting.is_empty() && data.room.is_some() {
            // Tickets may have left instead, so that their places are open again.
            let found = self.store.read_backfills(std::slice::from_ref(&id)).await?.pop().flatten();
            data = found.unwrap_or(data);
        }
        let tickets = self.read(&listed, &assignment).await?;
        fault::point("matchmaking.backfill.notified");
        match self.store.mark_listed(&id, &listed).await {
            Ok(is_full) => drop(self.metrics.backfills_filled.inc_by(is_full.into())),
            Err(error) => tracing::warn!(
                outage = "tickets",
                cause = chain(&error),
                "Cannot record the answer to a game server; the next answer lists its tickets again"
            ),
        }
        let backfill = MessageField::some(decode(&id, &data)?);
        Ok(openmatch::AcknowledgeBackfillResponse { backfill, tickets, ..Default::default() })
    }

    /// Assigns tickets to the game server, all that are still in the backfill. Returns those.
    async fn assign(
        &self,
        id: &BackfillId,
        room: Option<&Room>,
        seats: &BTreeMap<TicketId, Seat>,
        mut waiting: Vec<TicketId>,
        assignment: &openmatch::Assignment,
    ) -> Result<Vec<TicketId>, Error> {
        let of_ticket = |id: &TicketId| match (room, seats.get(id)) {
            (Some(room), Some(seat)) => wire::assignment_of_seat(assignment, room, seat),
            _ => assignment.clone(),
        };
        let trace = TraceContext::current();
        let traceparent =
            trace.headers().find(|(name, _)| *name == "traceparent").map_or("", |(_, value)| value);
        loop {
            let tickets = self.store.read(&waiting).await?;
            waiting = tickets.iter().map(|ticket| ticket.id.clone()).collect();
            if waiting.is_empty() {
                return Ok(waiting);
            }
            let now = self.clock.now();
            let each: Vec<openmatch::Assignment> =
                if room.is_some() { waiting.iter().map(of_ticket).collect() } else { Vec::new() };
            let assignments = match each.is_empty() {
                true => Assignments::Shared(assignment.encode_to_bytes()),
                false => Assignments::PerTicket(each.iter().map(Message::encode_to_bytes).collect()),
            };
            let origin = room.map(|room| room.origin.clone()).unwrap_or_default();
            let match_ =
                wire::encode_backfilled(id, origin, &tickets, assignment.clone(), each, now, traceparent);
            match self.store.assign_backfill(id, &waiting, &assignments, &match_).await? {
                AssignBackfillOutcome::Assigned(batch) => {
                    fault::point("matchmaking.backfill.assigned");
                    recorder::record_and_notify(&self.store, self.recorder.as_deref(), &batch).await;
                    self.metrics.backfill_tickets_assigned.inc_by(waiting.len() as u64);
                    return Ok(waiting);
                }
                // Tickets were cancelled or released since they were listed. The others need a match without them.
                AssignBackfillOutcome::Refused(left) => waiting.retain(|ticket| !left.contains(ticket)),
            }
        }
    }

    /// Reads assigned tickets for the answer. Skips those that are gone by now.
    async fn read(
        &self,
        ids: &[TicketId],
        assignment: &openmatch::Assignment,
    ) -> Result<Vec<openmatch::Ticket>, Error> {
        let found = try_join_all(ids.iter().map(|id| self.store.find(id))).await?;
        let ticket = |found: crate::store::StoredTicket| {
            let mut ticket = openmatch::Ticket::decode_from_slice(&found.data?).ok()?;
            let known =
                found.assignment.and_then(|data| openmatch::Assignment::decode_from_slice(&data).ok());
            // A separate server for assignments may not have it yet.
            ticket.assignment = MessageField::some(known.unwrap_or_else(|| assignment.clone()));
            Some(ticket)
        };
        Ok(found.into_iter().filter_map(ticket).collect())
    }
}

impl BackfillLimits {
    /// Checks what callers may set of a backfill.
    pub(crate) fn check(&self, backfill: &openmatch::Backfill) -> Result<(), Error> {
        let fields = backfill.search_fields.as_option();
        let counts = [
            ("search_fields.tags", fields.map_or(0, |fields| fields.tags.len())),
            ("search_fields.double_args", fields.map_or(0, |fields| fields.double_args.len())),
            ("search_fields.string_args", fields.map_or(0, |fields| fields.string_args.len())),
            ("extensions", backfill.extensions.len()),
            ("persistent_field", backfill.persistent_field.len()),
        ];
        let max = self.max_fields;
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > max) {
            return Err(Error::Invalid(format!(
                "backfill.{name} has {count} entries; at most {max} are allowed"
            )));
        }
        let (fields, persistent) = wire::backfill_parts(backfill.clone());
        let (size, max) = (fields.len() + persistent.len(), self.max_size);
        if size > max {
            return Err(Error::Invalid(format!("the backfill has {size} bytes; at most {max} are allowed")));
        }
        Ok(())
    }
}

fn required() -> Error {
    Error::Invalid(".backfill is required".to_owned())
}

fn require_id(id: &str) -> Result<(), Error> {
    if id.is_empty() { Err(Error::Invalid(".BackfillId is required".to_owned())) } else { Ok(()) }
}

pub(crate) fn parse(id: &str) -> Result<BackfillId, Error> {
    BackfillId::parse(id).ok_or_else(|| Error::BackfillNotFound(id.to_owned()))
}

pub(crate) fn not_found(id: &BackfillId) -> Error {
    Error::BackfillNotFound(id.to_string())
}

fn decode(id: &BackfillId, data: &BackfillData) -> Result<openmatch::Backfill, Error> {
    wire::backfill_from_parts(data).ok_or_else(|| not_found(id))
}
