//! Notifications are made here, and nowhere else: in one transaction with what makes them necessary.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use account::{Accounts, UserId};
use base::Clock;
use base::error::chain;
use base::id::{ProcessId, Uuid};
use bus::Event;
use db::{Db, Tx};

use crate::broadcast::Broadcasts;
use crate::deliver::{Deliveries, Published, Webhooks};
use crate::metrics::Metrics;
use crate::model::{Addressed, Message, Notification};
use crate::rules::Rules;
use crate::{Config, Error, store};

/// How much is written to the database at once: servers refuse messages that are too long, and values are written in hexadecimal.
const MESSAGE: usize = 1 << 20;
/// How many users are asked for with one query.
const KNOWN_AT_ONCE: usize = 1_000;

/// The use cases. Clones are the same.
#[derive(Clone, Debug)]
pub struct Notifications(pub(crate) Arc<Parts>);

/// What they are made of.
#[derive(Debug)]
pub struct Parts {
    /// Who claims what is delivered at once.
    pub process: ProcessId,
    pub db: Db,
    pub accounts: Accounts,
    pub rules: Rules,
    pub deliveries: Deliveries,
    pub broadcasts: Broadcasts,
    pub clock: Clock,
    pub metrics: Metrics,
    pub config: Config,
}

/// An event, and who is told what of it.
#[derive(Debug)]
pub(crate) struct Understood {
    pub(crate) event: Uuid,
    pub(crate) told: Vec<Addressed>,
}

/// Events that are about to be taken in.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    /// Those that tell somebody. Events without recipients are not recorded.
    events: Vec<&'a Understood>,
    /// Those of their users who exist and are not erased.
    users: HashSet<Uuid>,
}

impl Incoming<'_> {
    /// Returns the ids by which the events are recorded.
    pub(crate) fn ids(&self) -> Vec<Uuid> {
        self.events.iter().map(|event| event.event).collect()
    }
}

/// What was made in a transaction, to be told once it is committed.
#[derive(Debug, Default)]
#[must_use = "the players wait to be told"]
pub(crate) struct Made(pub(crate) Vec<MadeOne>);

#[derive(Clone, Debug)]
pub(crate) struct MadeOne {
    pub(crate) notification: Notification,
    pub(crate) message: Arc<Message>,
}

impl Made {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// How many of these can be written with one message to the database; at least one.
fn fitting(made: &[MadeOne]) -> usize {
    let mut size = 0;
    let fits = |one: &&MadeOne| {
        size += one.size();
        size <= MESSAGE
    };
    made.iter().take_while(fits).count().max(1)
}

impl MadeOne {
    /// About how many bytes it is, as one row.
    fn size(&self) -> usize {
        let Notification { texts, data, .. } = &self.notification;
        let texts: usize = texts.values().map(|text| text.title.len() + text.body.len()).sum();
        (texts + data.to_string().len() + 500) * (1 + self.message.channels.len())
    }
}

impl Notifications {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    pub fn broadcasts(&self) -> &Broadcasts {
        &self.0.broadcasts
    }

    pub fn deliveries(&self) -> &Deliveries {
        &self.0.deliveries
    }

    pub fn webhooks(&self) -> &Webhooks {
        self.0.deliveries.webhooks()
    }

    /// What an event says, and to whom; or why that cannot be told.
    pub(crate) fn understand(&self, subject: &str, body: &[u8]) -> Result<Understood, String> {
        let event = Event::decode(subject, body).map_err(|error| chain(&error))?;
        let told = self.0.rules.told(&event, self.0.clock.now()).map_err(|untold| untold.to_string())?;
        Ok(Understood { event: *event.id.as_uuid(), told })
    }

    /// Prepares events to be taken in. Call it before the transaction: one that waits for a second connection may wait for ever.
    pub(crate) async fn incoming<'a>(&self, events: &[&'a Understood]) -> Result<Incoming<'a>, Error> {
        let events: Vec<&Understood> =
            events.iter().filter(|event| !event.told.is_empty()).copied().collect();
        let users = self.existing_users(&events).await?;
        Ok(Incoming { events, users })
    }

    /// Returns the users of these events who exist.
    async fn existing_users(&self, events: &[&Understood]) -> Result<HashSet<Uuid>, Error> {
        let users = events.iter().flat_map(|event| event.told.iter().map(|told| told.user));
        let users: BTreeSet<Uuid> = users.collect();
        let users: Vec<UserId> = users.into_iter().map(UserId::from_uuid).collect();
        let mut known = HashSet::with_capacity(users.len());
        for some in users.chunks(KNOWN_AT_ONCE) {
            known.extend(self.0.accounts.known(some).await?.iter().map(|user| *user.as_uuid()));
        }
        Ok(known)
    }

    /// Makes the notifications of those events that are new. Also returns how many events are not.
    pub(crate) async fn make_of(
        &self,
        tx: &mut Tx,
        incoming: &Incoming<'_>,
        mut new: HashSet<Uuid>,
    ) -> Result<(Made, usize), db::Error> {
        let mut messages = Vec::new();
        let (mut repeated, mut unknown) = (0, 0);
        for event in &incoming.events {
            // Twice in one batch is once.
            if !new.remove(&event.event) {
                repeated += 1;
                continue;
            }
            let before = messages.len();
            messages.extend(event.told.iter().filter(|told| incoming.users.contains(&told.user)).cloned());
            unknown += event.told.len() - (messages.len() - before);
        }
        self.0.metrics.unknown(unknown);
        Ok((self.make(tx, &messages).await?, repeated))
    }

    /// Puts messages into the inboxes of their users, and their deliveries into the queues, in the caller's transaction.
    pub(crate) async fn make(&self, tx: &mut Tx, messages: &[Addressed]) -> Result<Made, db::Error> {
        let Parts { clock, config, deliveries, process, .. } = &*self.0;
        let made = store::place(tx, messages, clock.now()).await?;
        let mut rest = &made[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(fitting(rest));
            store::insert(tx, some.iter().map(|one| &one.notification), config.retention);
            deliveries.push(tx, *process, some);
            if !others.is_empty() {
                tx.write().await?;
            }
            rest = others;
        }
        Ok(Made(made))
    }

    /// Publishes the notifications that were made, after their commit.
    pub(crate) async fn publish(&self, made: &Made) -> Published {
        self.0.metrics.made(made.len());
        self.0.deliveries.publish(made).await
    }

    /// Publishes the notifications that were made and finishes their deliveries.
    pub(crate) async fn deliver(&self, made: &Made) {
        let published = self.publish(made).await;
        self.settle(made, published).await;
    }

    /// Finishes the deliveries to streams. The workers of the queues make good what fails here.
    pub(crate) async fn settle(&self, made: &Made, published: Published) {
        self.0.deliveries.settle(made, published).await;
    }

    pub(crate) async fn begin(&self) -> Result<Tx, Error> {
        Ok(self.0.db.begin().await?)
    }

    /// Runs an attempt, which has a transaction of its own, again while it meets another one.
    pub(crate) async fn retrying<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        db::retrying(Error::is_conflict, || self.0.db.bounded(attempt())).await
    }
}
