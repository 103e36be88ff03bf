//! Creates notifications. Events, requests and broadcasts all go through [`Notifications::create`], each in its own transaction.

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
use crate::model::{AddressedMessage, Message, Notification};
use crate::rules::Rules;
use crate::{Config, Error, store};

/// About how many bytes one message to the database may have: servers refuse longer ones, and values are sent in hexadecimal.
const MAX_MESSAGE: usize = 1 << 20;
/// How many users one query looks up.
const USERS_PER_QUERY: usize = 1_000;

/// The use cases. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Notifications(pub(crate) Arc<Parts>);

/// The parts of [`Notifications`].
#[derive(Debug)]
pub struct Parts {
    /// Claims the deliveries to streams, which this process publishes right after the commit.
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

/// An event and the messages that it causes.
#[derive(Debug)]
pub(crate) struct InterpretedEvent {
    pub(crate) event_id: Uuid,
    pub(crate) messages: Vec<AddressedMessage>,
}

/// Events that are about to be taken in.
#[derive(Debug)]
pub(crate) struct IntakeBatch<'a> {
    /// The events that have recipients. Others are not recorded.
    events: Vec<&'a InterpretedEvent>,
    /// Their recipients who exist and are not erased.
    users: HashSet<Uuid>,
}

impl IntakeBatch<'_> {
    /// Returns the ids by which the events are recorded.
    pub(crate) fn ids(&self) -> Vec<Uuid> {
        self.events.iter().map(|event| event.event_id).collect()
    }
}

/// The notifications that a transaction created, to be published after the commit.
#[derive(Debug, Default)]
#[must_use = "publish them after the commit"]
pub(crate) struct CreatedBatch(pub(crate) Vec<Created>);

#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub(crate) notification: Notification,
    pub(crate) message: Arc<Message>,
}

impl CreatedBatch {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// Returns how many of these fit into one message to the database; at least one.
fn batch_len(created: &[Created]) -> usize {
    let mut size = 0;
    let fits = |one: &&Created| {
        size += one.size();
        size <= MAX_MESSAGE
    };
    created.iter().take_while(fits).count().max(1)
}

impl Created {
    /// Estimates the bytes of its rows: one in the inbox, and one per channel.
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

    /// Decodes an event and renders its messages. Fails with the cause if it cannot be interpreted.
    pub(crate) fn interpret(&self, subject: &str, body: &[u8]) -> Result<InterpretedEvent, String> {
        let now = self.0.clock.now();
        let event = Event::decode(subject, body, now).map_err(|error| chain(&error))?;
        let messages = self.0.rules.messages(&event, now).map_err(|error| error.to_string())?;
        Ok(InterpretedEvent { event_id: *event.id.as_uuid(), messages })
    }

    /// Prepares a batch of events. Call it before the transaction: a transaction that waits for a second connection may wait forever.
    pub(crate) async fn prepare_intake<'a>(
        &self,
        events: &[&'a InterpretedEvent],
    ) -> Result<IntakeBatch<'a>, Error> {
        let events: Vec<&InterpretedEvent> =
            events.iter().filter(|event| !event.messages.is_empty()).copied().collect();
        let users = self.existing_users(&events).await?;
        Ok(IntakeBatch { events, users })
    }

    /// Returns the recipients of these events who exist.
    async fn existing_users(&self, events: &[&InterpretedEvent]) -> Result<HashSet<Uuid>, Error> {
        let users = events.iter().flat_map(|event| event.messages.iter().map(|message| message.user));
        let users: BTreeSet<Uuid> = users.collect();
        let users: Vec<UserId> = users.into_iter().map(UserId::from_uuid).collect();
        let mut existing = HashSet::with_capacity(users.len());
        for some in users.chunks(USERS_PER_QUERY) {
            existing.extend(self.0.accounts.filter_existing(some).await?.iter().map(|user| *user.as_uuid()));
        }
        Ok(existing)
    }

    /// Creates the notifications of the events in `new`. Also returns the number of duplicates.
    pub(crate) async fn create_for_events(
        &self,
        tx: &mut Tx,
        batch: &IntakeBatch<'_>,
        mut new: HashSet<Uuid>,
    ) -> Result<(CreatedBatch, usize), db::Error> {
        let mut messages = Vec::new();
        let (mut duplicates, mut unknown) = (0, 0);
        for event in &batch.events {
            // Removed, because the batch may contain an event twice.
            if !new.remove(&event.event_id) {
                duplicates += 1;
                continue;
            }
            let before = messages.len();
            messages
                .extend(event.messages.iter().filter(|message| batch.users.contains(&message.user)).cloned());
            unknown += event.messages.len() - (messages.len() - before);
        }
        self.0.metrics.unknown_users(unknown);
        Ok((self.create(tx, &messages).await?, duplicates))
    }

    /// Adds messages to the inboxes of their users, and their deliveries to the queues, in the caller's transaction.
    pub(crate) async fn create(
        &self,
        tx: &mut Tx,
        messages: &[AddressedMessage],
    ) -> Result<CreatedBatch, db::Error> {
        let Parts { clock, config, deliveries, process, .. } = &*self.0;
        let created = store::assign_positions(tx, messages, clock.now()).await?;
        let mut rest = &created[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(batch_len(rest));
            store::insert(tx, some.iter().map(|one| &one.notification), config.retention);
            deliveries.push(tx, *process, some);
            if !others.is_empty() {
                tx.flush().await?;
            }
            rest = others;
        }
        Ok(CreatedBatch(created))
    }

    /// Publishes new notifications to streams. Call it after the commit.
    pub(crate) async fn publish(&self, created: &CreatedBatch) -> Published {
        self.0.metrics.created(created.len());
        self.0.deliveries.publish(created).await
    }

    /// Publishes new notifications and finishes their deliveries. Call it after the commit.
    pub(crate) async fn deliver(&self, created: &CreatedBatch) {
        let published = self.publish(created).await;
        self.settle(created, published).await;
    }

    /// Finishes the deliveries to streams. The workers of the queues retry those that fail here.
    pub(crate) async fn settle(&self, created: &CreatedBatch, published: Published) {
        self.0.deliveries.settle(created, published).await;
    }

    pub(crate) async fn begin(&self) -> Result<Tx, Error> {
        Ok(self.0.db.begin().await?)
    }

    /// Runs `attempt`, which has its own transaction, again while it conflicts with another one.
    pub(crate) async fn retrying<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        db::retry_conflicts(Error::is_conflict, || self.0.db.bounded(attempt())).await
    }
}
