//! Reading events, each by one of the readers of a name.

use std::fmt::Display;
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::Instant;

use crate::memory::MemoryConsumer;
use crate::pull::NatsConsumer;
use crate::subscription::LONGEST;
use crate::{Bus, Error, Event, Subscription};

/// How many acknowledgements are under way at once. One by one they would cost a round trip each.
const ACKS_IN_FLIGHT: usize = 256;

/// A reader of events. Clones, and others of the same name in any process, share the work.
#[derive(Clone, Debug)]
pub struct Consumer(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Memory(MemoryConsumer),
    Nats(NatsConsumer),
}

/// An event that was delivered. It comes again until it is acknowledged or given up, to this reader or to another.
///
/// What is answered counts for the event, not for this delivery of it: an answer that comes late, when the event is with
/// another reader already, is taken all the same.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Where it stands in the stream. Counts up, with gaps.
    pub position: u64,
    /// 1 when it is delivered for the first time. NATS may count too few: when it was killed, and old versions also when a
    /// reader went away at the moment of delivery.
    pub attempt: u64,
    /// Without the prefix of all subjects.
    pub subject: String,
    /// A CloudEvent in JSON.
    pub body: Bytes,
    pub(crate) origin: Origin,
}

/// Where an answer goes.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Memory(MemoryConsumer),
    Nats { consumer: NatsConsumer, reply: Subject },
}

/// What a reader says about an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Done,
    Again(Duration),
    GivenUp,
    InProgress,
}

impl Bus {
    /// Makes the durable consumer, or takes the one that exists. A new one starts with the first event that is kept.
    ///
    /// An existing one is given this `ack_wait` and `max_pending`; that it reads other subjects is an error.
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
    /// The events that are there, at most `max` of them; if there are none, what comes first within `wait`. None at all is
    /// no error.
    ///
    /// On NATS it ends within `wait` and `bus.timeout` whatever happens, and a server that has fallen silent is
    /// [`Error::Unreachable`] after about `bus.timeout` however long `wait` is. A stream or a consumer that has vanished is made
    /// again. Let it end: events that are under way to a `fetch` that is dropped come again only after `ack_wait`.
    pub async fn fetch(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        let wait = wait.min(LONGEST);
        match &self.0 {
            _ if max == 0 => Ok(Vec::new()),
            Kind::Memory(consumer) => Ok(consumer.fetch(max, wait).await),
            Kind::Nats(consumer) => consumer.fetch(max, wait).await,
        }
    }
}

impl Consumer {
    /// The position up to which everything is acknowledged, by all readers of the name.
    pub async fn floor(&self) -> Result<u64, Error> {
        match &self.0 {
            Kind::Memory(consumer) => Ok(consumer.floor()),
            Kind::Nats(consumer) => consumer.floor().await,
        }
    }
}

impl Delivery {
    /// What it tells. An event that cannot be read now can never be: give it up.
    pub fn event(&self) -> Result<Event, Error> {
        Event::decode(&self.subject, &self.body)
    }

    /// Says that it is done. `Ok` means that the bus has confirmed it: it is not delivered again, unless the server is killed
    /// and forgets what it has not written down.
    pub async fn ack(&self) -> Result<(), Error> {
        self.tell(Answer::Done, Instant::now()).await
    }

    /// Has it delivered again, not before this time has passed.
    pub async fn again(&self, after: Duration) -> Result<(), Error> {
        self.tell(Answer::Again(after.min(LONGEST)), Instant::now()).await
    }

    /// Never delivers it to this consumer again. Other consumers are not concerned. The reason is for the log.
    pub async fn give_up(&self, reason: impl Display) -> Result<(), Error> {
        let consumer = match &self.origin {
            Origin::Memory(consumer) => consumer.name(),
            Origin::Nats { consumer, .. } => consumer.name(),
        };
        let Self { position, attempt, subject, .. } = self;
        tracing::warn!(consumer, position, attempt, subject, %reason, "an event is given up");
        self.tell(Answer::GivenUp, Instant::now()).await
    }

    /// Says that it takes longer: `ack_wait` begins anew.
    pub async fn in_progress(&self) -> Result<(), Error> {
        self.tell(Answer::InProgress, Instant::now()).await
    }

    /// Answers, and waits for the confirmation until `bus.timeout` has passed since `started`.
    async fn tell(&self, answer: Answer, started: Instant) -> Result<(), Error> {
        match &self.origin {
            Origin::Memory(consumer) => {
                consumer.answer(self.position, answer);
                Ok(())
            }
            Origin::Nats { consumer, reply } => consumer.answer(reply, answer, started).await,
        }
    }
}

/// Acknowledges many events at once. The results are those of [`Delivery::ack`], one by one; all of it takes at most
/// `bus.timeout`.
pub async fn ack_all(deliveries: &[Delivery]) -> Vec<Result<(), Error>> {
    let started = Instant::now();
    // Collected, because a stream that still holds the closure cannot be awaited by a spawned task.
    let acks: Vec<_> = deliveries.iter().map(|delivery| delivery.tell(Answer::Done, started)).collect();
    futures::stream::iter(acks).buffered(ACKS_IN_FLIGHT).collect().await
}
