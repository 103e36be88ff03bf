//! The use cases of game clients: create, read, cancel and watch tickets.

mod grpc;
pub(crate) mod hub;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base::Clock;
use buffa::{Message, MessageField};
use bytes::Bytes;
use futures::Stream;
use http_server::{Connection, StreamPermit};
use proto::openmatch;
use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::backfills::{BackfillLimits, Backfills};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::{Moment, SearchFields, TicketId};
use crate::open_match::OpenMatchService;
use crate::players::USER_FIELD;
use crate::recorder::MatchRecorder;
use crate::store::{DeleteOutcome, NewTicket, Store, StoredTicket};
use crate::wire;

use self::hub::Hub;

/// The limits of a frontend.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// The lifetime of a ticket that sets none.
    pub ticket_ttl: Duration,
    /// The longest lifetime that a ticket may set.
    pub max_ticket_ttl: Duration,
    /// The size of the largest encoded ticket, in bytes.
    pub max_ticket_size: usize,
    /// How many tags, and how many entries in each map, a ticket may have.
    pub max_fields: usize,
    /// How many watchers one connection may have.
    pub max_watchers: usize,
    /// Whether a ticket carries its lifetime in `persistent_field`, as minimatch's tickets do.
    pub ttl_field: bool,
    /// The origins of pages that may call the Open Match listener.
    pub cors_origins: Vec<String>,
    /// How often all watched tickets are checked, in case a push was lost.
    pub watch_check: Duration,
}

impl FrontendConfig {
    pub const fn backfill_limits(&self) -> BackfillLimits {
        BackfillLimits { max_size: self.max_ticket_size, max_fields: self.max_fields }
    }
}

/// The use cases. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Frontend {
    pub(crate) store: Store,
    pub(crate) hub: Hub,
    pub(crate) backfills: Backfills,
    config: FrontendConfig,
    pub(crate) clock: Clock,
    /// The creation time of the last ticket, in microseconds. Each ticket of this process is younger than the one
    /// before.
    last: Arc<AtomicI64>,
}

impl Frontend {
    pub fn new(store: Store, config: FrontendConfig, clock: Clock, metrics: Metrics) -> Self {
        let hub = Hub::new(store.clone(), config.watch_check, metrics.clone());
        let backfills = Backfills::new(store.clone(), config.backfill_limits(), clock.clone(), metrics);
        Self { store, hub, backfills, config, clock, last: Arc::default() }
    }

    /// Sets the recorder that records the matches of backfills before their players are notified.
    #[must_use]
    pub fn with_recorder(self, recorder: Arc<dyn MatchRecorder>) -> Self {
        Self { backfills: self.backfills.with_recorder(recorder), ..self }
    }

    /// Returns the use cases of backfills.
    pub const fn backfills(&self) -> &Backfills {
        &self.backfills
    }

    /// Returns Open Match's FrontendService.
    pub fn service(&self) -> OpenMatchService {
        grpc::service(self.clone())
    }

    /// Delivers the store's events to watchers until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.hub.run(drain).await
    }

    /// Creates a ticket. Returns it as stored.
    pub async fn create(&self, ticket: Option<openmatch::Ticket>) -> Result<Bytes, Error> {
        let ticket = ticket.ok_or_else(|| Error::Invalid(".ticket is required".to_owned()))?;
        Ok(self.create_ticket(ticket).await?.1)
    }

    /// Creates a ticket with these fields, for programs that embed the matchmaker.
    pub async fn create_from_fields(&self, fields: SearchFields) -> Result<TicketId, Error> {
        let search_fields = MessageField::some(wire::fields_to_wire(fields));
        Ok(self.create_ticket(openmatch::Ticket { search_fields, ..Default::default() }).await?.0)
    }

    async fn create_ticket(&self, ticket: openmatch::Ticket) -> Result<(TicketId, Bytes), Error> {
        let ticket = self.prepare(ticket)?;
        let (id, data) = (ticket.id.clone(), ticket.data.clone());
        // Subscribe before it can be matched.
        self.hub.ticket_created(id.clone(), ticket.ttl);
        self.store.create(ticket).await?;
        Ok((id, data))
    }

    /// Checks a ticket, and sets its id, creation time and TTL.
    pub(crate) fn prepare(&self, mut ticket: openmatch::Ticket) -> Result<NewTicket, Error> {
        let ttl = self.check(&ticket)?;
        let created = self.now();
        let id = TicketId::generate(created);
        ticket.id = id.to_string();
        ticket.create_time = MessageField::some(wire::timestamp(created));
        // Players read when their ticket expires.
        if self.config.ttl_field || ticket.persistent_field.contains_key(USER_FIELD) {
            ticket.persistent_field.insert(wire::TTL.to_owned(), wire::duration_to_any(ttl));
        }
        let data = ticket.encode_to_bytes();
        if data.len() > self.config.max_ticket_size {
            let (size, max) = (data.len(), self.config.max_ticket_size);
            return Err(Error::Invalid(format!("the ticket has {size} bytes; at most {max} are allowed")));
        }
        Ok(NewTicket { id, created, ttl, data })
    }

    /// Checks a ticket against the limits. Returns its TTL.
    fn check(&self, ticket: &openmatch::Ticket) -> Result<Duration, Error> {
        if ticket.assignment.is_set() {
            return Err(Error::Invalid("tickets cannot be created with an assignment".to_owned()));
        }
        if ticket.create_time.is_set() {
            return Err(Error::Invalid("tickets cannot be created with create time set".to_owned()));
        }
        let fields = ticket.search_fields.as_option();
        let counts = [
            ("search_fields.tags", fields.map_or(0, |fields| fields.tags.len())),
            ("search_fields.double_args", fields.map_or(0, |fields| fields.double_args.len())),
            ("search_fields.string_args", fields.map_or(0, |fields| fields.string_args.len())),
            ("extensions", ticket.extensions.len()),
            ("persistent_field", ticket.persistent_field.len()),
        ];
        let max = self.config.max_fields;
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > max) {
            return Err(Error::Invalid(format!(
                "ticket.{name} has {count} entries; at most {max} are allowed"
            )));
        }
        let Some(requested) = ticket.persistent_field.get(wire::TTL) else {
            return Ok(self.config.ticket_ttl);
        };
        let ttl = wire::duration_from_any(requested).filter(|ttl| *ttl >= Duration::from_millis(1));
        ttl.filter(|ttl| *ttl <= self.config.max_ticket_ttl).ok_or_else(|| {
            let max = self.config.max_ticket_ttl;
            Error::Invalid(format!(
                "ticket.persistent_field.ttl must be an Int64Value with nanoseconds, from 1 ms to {max:?}"
            ))
        })
    }

    /// Returns the current time, but always later than the previous ticket's.
    fn now(&self) -> Moment {
        let now = Moment::from(self.clock.now()).micros();
        let before =
            self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(now.max(last + 1)));
        Moment::from_micros(now.max(before.unwrap_or_default() + 1))
    }

    /// Returns a ticket, with its assignment if there is one.
    pub async fn get(&self, id: &str) -> Result<openmatch::Ticket, Error> {
        let id = known_form(id)?;
        let StoredTicket { data, assignment } = self.store.find(&id).await?;
        let ticket = data.and_then(|data| openmatch::Ticket::decode_from_slice(&data).ok());
        // A key of another program may look like a ticket's.
        let mut ticket = ticket
            .filter(|ticket| ticket.id == id.as_str())
            .ok_or_else(|| Error::NotFound(id.to_string()))?;
        let assignment = assignment.and_then(|data| openmatch::Assignment::decode_from_slice(&data).ok());
        ticket.assignment = assignment.into();
        Ok(ticket)
    }

    /// Cancels a ticket. Succeeds if there is no such ticket, as in Open Match.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let Some(id) = TicketId::parse(id) else { return Ok(()) };
        match self.store.delete(&id).await? {
            DeleteOutcome::Deleted | DeleteOutcome::NotFound => Ok(()),
            DeleteOutcome::AlreadyAssigned => Err(Error::AlreadyAssigned(id)),
        }
    }

    /// Removes a ticket from matchmaking.
    pub async fn deindex(&self, id: &str) -> Result<(), Error> {
        self.store.deindex(&ticket_id(id)?).await
    }

    /// Streams the assignment of a ticket once there is one, and each change of it, as encoded
    /// `WatchAssignmentsResponse`s.
    ///
    /// Ends with an error when the ticket is gone, or when the process stops.
    pub async fn watch(
        &self,
        id: &str,
        connection: &Connection,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let id = known_form(id)?;
        let held = self.hold(connection)?;
        self.hub.watch(id, connection.drain().clone(), held).await
    }

    pub(crate) fn hold(&self, connection: &Connection) -> Result<StreamPermit, Error> {
        let max = self.config.max_watchers;
        connection.acquire_stream(max).ok_or_else(|| {
            Error::TooMany(format!(
                "this connection already has {max} watchers: end some, or open another connection"
            ))
        })
    }
}

/// Parses an id. No ticket has an id of another form.
fn known_form(id: &str) -> Result<TicketId, Error> {
    TicketId::parse(id).ok_or_else(|| Error::NotFound(id.to_owned()))
}

pub(crate) fn ticket_id(text: &str) -> Result<TicketId, Error> {
    if text.is_empty() {
        return Err(Error::Invalid("ticket_id is required".to_owned()));
    }
    let invalid = || {
        Error::Invalid(format!(
            "ticket_id is invalid: it has at most {} letters, digits, `-` and `_`",
            TicketId::MAX_LENGTH
        ))
    };
    TicketId::parse(text).ok_or_else(invalid)
}
