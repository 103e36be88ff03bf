//! Durable consumers: each event goes to one of the readers that share a name.

use std::fmt::Display;
use std::time::Duration;

use async_nats::Subject;
use base::Timestamp;
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::Instant;

use crate::memory::MemoryConsumer;
use crate::pull::NatsConsumer;
use crate::subscription::MAX_WAIT;
use crate::{Bus, Error, Event, Subscription};

/// How many acknowledgements are in flight. Sequentially each would cost a round trip.
const ACKS_IN_FLIGHT: usize = 256;

/// A reader of events. Clones, and consumers of the same name in any process, share the work.
#[derive(Clone, Debug)]
pub struct Consumer(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Memory(MemoryConsumer),
    Nats(NatsConsumer),
}

/// A delivered event. The bus delivers it again, to this reader or another, until it is acknowledged or given up.
///
/// A response applies to the event, not to this delivery: a late response counts even if another reader has the event already.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its position in the stream. Increases, with gaps.
    pub position: u64,
    /// 1 for the first delivery. NATS may count too few: after a crash, and in old versions if a reader disconnects during a
    /// delivery.
    pub attempt: u64,
    /// Without the prefix `bus.subjects`.
    pub subject: String,
    /// A CloudEvent in JSON.
    pub body: Bytes,
    pub(crate) origin: Origin,
}

/// Where a response goes.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Memory(MemoryConsumer),
    Nats { consumer: NatsConsumer, reply: Subject },
}

/// A reader's response to a delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Response {
    Done,
    RedeliverAfter(Duration),
    GivenUp,
    InProgress,
}

impl Bus {
    /// Creates the durable consumer, or opens the existing one. A new one starts with the first stored event.
    ///
    /// Updates `ack_wait` and `max_pending` of an existing one. Fails if it reads other subjects.
    pub async fn subscribe(&self, subscription: &Subscription) -> Result<Consumer, Error> {
        subscription.check()?;
        let kind = match self {
            Self::Memory(memory) => Kind::Memory(memory.subscribe(subscription)?),
            Self::Nats(nats) => Kind::Nats(nats.subscribe(subscription).await?),
        };
        Ok(Consumer(kind))
    }
}

impl Consumer {
    /// Returns up to `max` available events. If there are none, waits up to `wait` for the first. Returns an empty list after that.
    ///
    /// On NATS it ends within `wait` plus `bus.timeout` in any case. A silent server is [`Error::Unreachable`] after about
    /// `bus.timeout`, however long `wait` is. A stream or a consumer that has vanished is created again. Do not drop the future: events
    /// in flight to a dropped `fetch` are delivered again only after `ack_wait`.
    pub async fn fetch(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        let wait = wait.min(MAX_WAIT);
        match &self.0 {
            _ if max == 0 => Ok(Vec::new()),
            Kind::Memory(consumer) => Ok(consumer.fetch(max, wait).await),
            Kind::Nats(consumer) => consumer.fetch(max, wait).await,
        }
    }
}

impl Consumer {
    /// Returns the position up to which all readers of the name have acknowledged everything.
    pub async fn ack_floor(&self) -> Result<u64, Error> {
        match &self.0 {
            Kind::Memory(consumer) => Ok(consumer.ack_floor()),
            Kind::Nats(consumer) => consumer.ack_floor().await,
        }
    }
}

impl Delivery {
    /// Parses the event. A parse error is permanent: give the event up. An event without a time gets `received`.
    pub fn event(&self, received: Timestamp) -> Result<Event, Error> {
        Event::decode(&self.subject, &self.body, received)
    }

    /// Acknowledges the event. `Ok` means that the bus has confirmed it and does not deliver the event again, unless the server
    /// crashes before it has written the acknowledgement.
    pub async fn ack(&self) -> Result<(), Error> {
        self.respond(Response::Done, Instant::now()).await
    }

    /// Requests another delivery, not before `after` has passed.
    pub async fn redeliver_after(&self, after: Duration) -> Result<(), Error> {
        self.respond(Response::RedeliverAfter(after.min(MAX_WAIT)), Instant::now()).await
    }

    /// Ends deliveries of this event to this consumer. Other consumers are not affected. Logs the reason.
    pub async fn give_up(&self, reason: impl Display) -> Result<(), Error> {
        let consumer = match &self.origin {
            Origin::Memory(consumer) => consumer.name(),
            Origin::Nats { consumer, .. } => consumer.name(),
        };
        let Self { position, attempt, subject, .. } = self;
        tracing::warn!(consumer, position, attempt, subject, %reason, "gave up an event");
        self.respond(Response::GivenUp, Instant::now()).await
    }

    /// Restarts `ack_wait`, because handling the event takes longer.
    pub async fn in_progress(&self) -> Result<(), Error> {
        self.respond(Response::InProgress, Instant::now()).await
    }

    /// Sends a response and waits for its confirmation, at most `bus.timeout` after `started`.
    async fn respond(&self, response: Response, started: Instant) -> Result<(), Error> {
        match &self.origin {
            Origin::Memory(consumer) => {
                consumer.respond(self.position, response);
                Ok(())
            }
            Origin::Nats { consumer, reply } => consumer.respond(reply, response, started).await,
        }
    }
}

/// Acknowledges many events concurrently. Returns one result per event, as [`Delivery::ack`] does. Takes at most `bus.timeout` in
/// total.
pub async fn ack_all(deliveries: &[Delivery]) -> Vec<Result<(), Error>> {
    let started = Instant::now();
    // Collected first: a spawned task cannot await a stream that still holds the closure.
    let acks: Vec<_> = deliveries.iter().map(|delivery| delivery.respond(Response::Done, started)).collect();
    futures::stream::iter(acks).buffered(ACKS_IN_FLIGHT).collect().await
}
