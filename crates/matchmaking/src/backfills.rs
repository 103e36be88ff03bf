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

use std::sync::Arc;

use base::Clock;
use base::error::chain;
use buffa::{Message, MessageField};
use futures::future::try_join_all;
use futures::{Stream, StreamExt, TryStreamExt};
use proto::openmatch;
use runtime::fault;
use runtime::telemetry::TraceContext;

use crate::error::Error;
use crate::frontend::FrontendConfig;
use crate::metrics::Metrics;
use crate::model::{BackfillId, Moment, Pool, Ticket, TicketId};
use crate::recorder::{self, MatchRecorder};
use crate::store::{
    AcknowledgeOutcome, AssignBackfillOutcome, BackfillChange, BackfillData, Store, UpdateBackfillOutcome,
};
use crate::wire;

pub use self::cleaner::BackfillCleaner;

/// How many tickets of a backfill are assigned in one step.
const ASSIGNED_AT_ONCE: usize = 500;
/// How many backfills a query reads at once.
const READ_AT_ONCE: usize = 500;

/// The use cases of game servers and match functions. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Backfills {
    store: Store,
    limits: FrontendConfig,
    clock: Clock,
    metrics: Metrics,
    recorder: Option<Arc<dyn MatchRecorder>>,
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
    /// Reads the backfill of a proposal, a new one if it has no id. Returns `None` if no backfill can have its id.
    pub fn read(mut proposed: openmatch::Backfill, now: Moment) -> Option<Self> {
        if !proposed.id.is_empty() {
            let id = BackfillId::parse(&proposed.id)?;
            let (fields, _) = wire::backfill_parts(proposed.clone());
            let change = BackfillChange::Update { id, generation: proposed.generation, fields };
            return Some(Self { change, returned: proposed });
        }
        let new = wire::new_backfill(BackfillId::generate(now), now, proposed.clone());
        proposed.id = new.id.to_string();
        proposed.create_time = MessageField::some(wire::timestamp(now));
        proposed.generation = 1;
        Some(Self { change: BackfillChange::Create(new), returned: proposed })
    }
}

impl Backfills {
    pub fn new(store: Store, limits: FrontendConfig, clock: Clock, metrics: Metrics) -> Self {
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
        self.check(&backfill)?;
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
        self.check(&backfill)?;
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
        let mut listed = acknowledged.unlisted;
        for waiting in acknowledged.waiting.chunks(ASSIGNED_AT_ONCE) {
            listed.extend(self.assign(&id, waiting.to_vec(), &assignment).await?);
        }
        let tickets = self.read(&listed, &assignment).await?;
        fault::point("matchmaking.backfill.notified");
        if let Err(error) = self.store.mark_listed(&id, &listed).await {
            tracing::warn!(
                outage = "tickets",
                cause = chain(&error),
                "Cannot record the answer to a game server; the next answer lists its tickets again"
            );
        }
        let backfill = MessageField::some(decode(&id, &acknowledged.data)?);
        Ok(openmatch::AcknowledgeBackfillResponse { backfill, tickets, ..Default::default() })
    }

    /// Assigns tickets to the game server, all that are still in the backfill. Returns those.
    async fn assign(
        &self,
        id: &BackfillId,
        mut waiting: Vec<TicketId>,
        assignment: &openmatch::Assignment,
    ) -> Result<Vec<TicketId>, Error> {
        let encoded = assignment.encode_to_bytes();
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
            let match_ = wire::encode_backfilled(id, &tickets, assignment.clone(), now, traceparent);
            match self.store.assign_backfill(id, &waiting, &encoded, &match_).await? {
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

    /// Streams the backfills that a pool admits, in pages, without expired ones. Reads them as the caller takes them.
    pub async fn query(
        &self,
        pool: Pool,
        page_size: usize,
    ) -> Result<impl Stream<Item = Result<Vec<openmatch::Backfill>, Error>> + Send + use<>, Error> {
        let (store, now) = (self.store.clone(), Moment::from(self.clock.now()));
        let ids = self.store.live_backfills().await?;
        let chunks: Vec<Vec<BackfillId>> = ids.chunks(READ_AT_ONCE).map(<[_]>::to_vec).collect();
        let admits = move |wire: &openmatch::Backfill| {
            let (fields, created) = wire::backfill_filter_input(wire);
            pool.admits(&Ticket { fields, created, ..Ticket::default() }, now)
        };
        let read = move |ids: Vec<BackfillId>| {
            let store = store.clone();
            async move { store.read_backfills(&ids).await }
        };
        let found = futures::stream::iter(chunks).then(read).map_ok(move |chunk| {
            let decoded = chunk.iter().flatten().filter_map(wire::backfill_from_parts).filter(&admits);
            futures::stream::iter(decoded.map(Ok).collect::<Vec<_>>())
        });
        Ok(found.try_flatten().try_chunks(page_size.max(1)).map_err(|error| error.1))
    }

    /// Checks a backfill against the limits of tickets.
    fn check(&self, backfill: &openmatch::Backfill) -> Result<(), Error> {
        let fields = backfill.search_fields.as_option();
        let counts = [
            ("search_fields.tags", fields.map_or(0, |fields| fields.tags.len())),
            ("search_fields.double_args", fields.map_or(0, |fields| fields.double_args.len())),
            ("search_fields.string_args", fields.map_or(0, |fields| fields.string_args.len())),
            ("extensions", backfill.extensions.len()),
            ("persistent_field", backfill.persistent_field.len()),
        ];
        let max = self.limits.max_fields;
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > max) {
            return Err(Error::Invalid(format!(
                "backfill.{name} has {count} entries; at most {max} are allowed"
            )));
        }
        let (size, max) = (backfill.encode_to_bytes().len(), self.limits.max_ticket_size);
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
