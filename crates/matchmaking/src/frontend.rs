//! What players and their game clients can do with tickets.

mod grpc;
pub(crate) mod hub;
mod rest;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base::Clock;
use buffa::{Message, MessageField};
use bytes::Bytes;
use futures::Stream;
use http_server::{Connection, Held, Routes};
use proto::openmatch;
use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::{Moment, SearchFields, TicketId};
use crate::store::{Deleted, Found, NewTicket, Store};
use crate::wire;

use self::hub::Hub;

/// What a frontend accepts.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// How long a ticket may wait if it does not say.
    pub ticket_ttl: Duration,
    /// How long a ticket may ask to wait.
    pub max_ticket_ttl: Duration,
    /// The largest ticket, encoded, in bytes.
    pub max_ticket_size: usize,
    /// How many tags, and how many entries in each map, a ticket may have.
    pub max_fields: usize,
    /// How many watchers one connection may have.
    pub max_watchers: usize,
    /// How often all watched tickets are looked at, in case a push was lost.
    pub watch_check: Duration,
}

/// The use cases. Clones are the same frontend.
#[derive(Clone, Debug)]
pub struct Frontend {
    pub(crate) store: Store,
    pub(crate) hub: Hub,
    config: FrontendConfig,
    clock: Clock,
    /// The creation time of the last ticket, in microseconds: each ticket of this process is younger than the one before.
    last: Arc<AtomicI64>,
}

impl Frontend {
    pub fn new(store: Store, config: FrontendConfig, clock: Clock, metrics: Metrics) -> Self {
        let hub = Hub::new(store.clone(), config.watch_check, metrics);
        Self { store, hub, config, clock, last: Arc::default() }
    }

    /// gRPC, gRPC-Web and Connect, health and reflection, and the REST mapping.
    pub fn routes(&self) -> Routes {
        grpc::routes(self.clone()).merge(rest::routes(self.clone()).into())
    }

    /// Passes on what the store tells, until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.hub.run(drain).await
    }

    /// Makes a ticket. Returns it as it is stored.
    pub async fn create(&self, ticket: Option<openmatch::Ticket>) -> Result<Bytes, Error> {
        let ticket = ticket.ok_or_else(|| Error::Invalid("ticket is required".to_owned()))?;
        Ok(self.make(ticket).await?.1)
    }

    /// Makes a ticket of these fields, for programs that embed the matchmaker.
    pub async fn create_with(&self, fields: SearchFields) -> Result<TicketId, Error> {
        let search_fields = MessageField::some(wire::fields_to_wire(fields));
        Ok(self.make(openmatch::Ticket { search_fields, ..Default::default() }).await?.0)
    }

    async fn make(&self, ticket: openmatch::Ticket) -> Result<(TicketId, Bytes), Error> {
        let ticket = self.prepare(ticket)?;
        let (id, data) = (ticket.id.clone(), ticket.data.clone());
        // Listened for before it can be matched.
        self.hub.made(id.clone(), ticket.ttl);
        self.store.create(ticket).await?;
        Ok((id, data))
    }

    /// Checks a ticket, and gives it its id, its time and its lifetime.
    pub(crate) fn prepare(&self, mut ticket: openmatch::Ticket) -> Result<NewTicket, Error> {
        let ttl = self.check(&ticket)?;
        let created = self.now();
        let id = TicketId::generate(created);
        ticket.id = id.to_string();
        ticket.create_time = MessageField::some(wire::timestamp(created));
        ticket.persistent_field.insert(wire::TTL.to_owned(), wire::duration_to_any(ttl));
        let data = ticket.encode_to_bytes();
        if data.len() > self.config.max_ticket_size {
            let (size, max) = (data.len(), self.config.max_ticket_size);
            return Err(Error::Invalid(format!(
                "the ticket has {size} bytes, and at most {max} are allowed"
            )));
        }
        Ok(NewTicket { id, created, ttl, data })
    }

    /// Returns how long the ticket may wait.
    fn check(&self, ticket: &openmatch::Ticket) -> Result<Duration, Error> {
        if ticket.assignment.is_set() {
            return Err(Error::Invalid("ticket.assignment is set by the server: leave it out".to_owned()));
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
                "ticket.{name} has {count} entries, and at most {max} are allowed"
            )));
        }
        let Some(asked) = ticket.persistent_field.get(wire::TTL) else { return Ok(self.config.ticket_ttl) };
        let ttl = wire::duration(asked).filter(|ttl| *ttl >= Duration::from_millis(1));
        ttl.filter(|ttl| *ttl <= self.config.max_ticket_ttl).ok_or_else(|| {
            let max = self.config.max_ticket_ttl;
            Error::Invalid(format!(
                "ticket.persistent_field.ttl must be an Int64Value with nanoseconds, from 1 ms to {max:?}"
            ))
        })
    }

    /// Later than any creation before.
    fn now(&self) -> Moment {
        let now = Moment::from(self.clock.now()).micros();
        let before =
            self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(now.max(last + 1)));
        Moment::from_micros(now.max(before.unwrap_or_default() + 1))
    }

    /// A ticket, with its assignment if there is one.
    pub async fn get(&self, id: &str) -> Result<openmatch::Ticket, Error> {
        let id = ticket_id(id)?;
        let Found { data, assignment } = self.store.find(&id).await?;
        let ticket = data.and_then(|data| openmatch::Ticket::decode_from_slice(&data).ok());
        // Another program's key may look like one of ours.
        let mut ticket = ticket.filter(|ticket| ticket.id == id.as_str()).ok_or(Error::NotFound(id))?;
        let assignment = assignment.and_then(|data| openmatch::Assignment::decode_from_slice(&data).ok());
        ticket.assignment = assignment.into();
        Ok(ticket)
    }

    /// Takes a ticket back. One that is gone already is as good as taken back.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let id = ticket_id(id)?;
        match self.store.delete(&id).await? {
            Deleted::Done | Deleted::Unknown => Ok(()),
            Deleted::Assigned => Err(Error::AlreadyAssigned(id)),
        }
    }

    /// Takes a ticket out of matchmaking.
    pub async fn deindex(&self, id: &str) -> Result<(), Error> {
        self.store.deindex(&ticket_id(id)?).await
    }

    /// The assignment of a ticket as soon as there is one, and each change of it, as encoded `WatchAssignmentsResponse`s.
    ///
    /// Ends with an error: when the ticket is gone, or when the process stops.
    pub async fn watch(
        &self,
        id: &str,
        connection: &Connection,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let id = ticket_id(id)?;
        let held = self.hold(connection)?;
        self.hub.watch(id, connection.drain().clone(), held).await
    }

    pub(crate) fn hold(&self, connection: &Connection) -> Result<Held, Error> {
        let max = self.config.max_watchers;
        connection.hold(max).ok_or_else(|| {
            Error::TooMany(format!(
                "this connection has {max} watchers already: end some, or open another connection"
            ))
        })
    }
}

pub(crate) fn ticket_id(text: &str) -> Result<TicketId, Error> {
    if text.is_empty() {
        return Err(Error::Invalid("ticket_id is required".to_owned()));
    }
    let invalid = || {
        Error::Invalid(format!(
            "ticket_id is not an id: at most {} letters, digits, `-` and `_`",
            TicketId::MAX_LENGTH
        ))
    };
    TicketId::parse(text).ok_or_else(invalid)
}
