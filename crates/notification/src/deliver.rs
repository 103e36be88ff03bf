//! Deliveries: each notification on each of its channels is an item of that channel's queue.
//!
//! | state | reached by |
//! |---|---|
//! | PENDING | created with the notification, or put back after a failed attempt with the time of the next one |
//! | PROCESSING | claimed by a worker, until its lease expires |
//! | SENT | published to the streams, logged, or accepted by the destination; or skipped, because it expired or the user was erased |
//! | FAILED | out of attempts; the same transaction writes the dead letter |
//!
//! The process that creates a notification claims its `live` delivery in the same transaction, and publishes the notification right after
//! the commit. That saves a second transaction. If the process dies, the lease expires and another one publishes it.

mod check;
mod log;
mod stream;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use base::error::chain;
use base::id::{ProcessId, Uuid};
use db::{Db, Tx};
use live::Live;
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use tokio::time::timeout;
use work_queue::{ItemOutcome, ItemView, NewItem, RetentionCleaner, State, Unordered, WorkQueue, Worker};

use crate::dead_letters::DeadLetterHook;
use crate::model::{Channel, Notification, derived};
use crate::service::{Created, CreatedBatch};
use crate::{Config, Error};

pub use self::check::DeliveryCheck;
use self::webhooks::DestinationView;
pub use self::webhooks::Webhooks;

/// The names of the work queues, one per channel.
pub const LIVE: &str = "notification_live";
pub const LOG: &str = "notification_log";
pub const WEBHOOK: &str = "notification_webhook";

/// How long publishing to streams may take, so that a Redis that does not answer does not delay the inboxes.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(500);

/// The queues of all channels and their targets. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Deliveries(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queues: ChannelQueues,
    streams: Live,
    webhooks: Webhooks,
    check: DeliveryCheck,
}

/// The queue of each channel.
#[derive(Debug)]
pub struct ChannelQueues {
    live: Unordered,
    log: WorkQueue,
    webhook: WorkQueue,
}

impl ChannelQueues {
    pub fn new(db: &Db, config: &Config, metrics: &work_queue::Metrics, clock: &Clock) -> Self {
        let queue = |table, config: &work_queue::Config| {
            let queue =
                WorkQueue::new(table, db.clone(), config.clone(), metrics.for_queue(table), clock.clone());
            queue.with_failure_hook(Arc::new(DeadLetterHook)).unordered()
        };
        Self {
            live: queue(LIVE, &config.delivery),
            log: queue(LOG, &config.delivery).into(),
            webhook: queue(WEBHOOK, &config.webhook_delivery).into(),
        }
    }

    fn all(&self) -> [&WorkQueue; 3] {
        [&*self.live, &self.log, &self.webhook]
    }
}

/// The result of publishing notifications to the streams, with the cause of a failure.
pub(crate) type Published = Result<(), String>;

impl Deliveries {
    pub fn new(queues: ChannelQueues, streams: Live, webhooks: Webhooks, check: DeliveryCheck) -> Self {
        Self(Arc::new(Inner { queues, streams, webhooks, check }))
    }

    pub(crate) fn queues(&self) -> [&WorkQueue; 3] {
        self.0.queues.all()
    }

    /// Adds the deliveries of new notifications to the transaction. This process claims those to streams.
    pub(crate) fn push(&self, tx: &mut Tx, process: ProcessId, created: &[Created]) {
        let (mut live, mut log, mut webhook) = (Vec::new(), Vec::new(), Vec::new());
        for one in created {
            let notification = &one.notification;
            // A struct of plain values always serializes.
            let payload = serde_json::to_vec(notification).unwrap_or_default();
            for channel in &one.message.channels {
                let list = match channel {
                    Channel::Live => &mut live,
                    Channel::Log => &mut log,
                    Channel::Webhook(_) => &mut webhook,
                };
                let id = delivery_id(notification.notification_id, channel);
                list.push((id, notification.user_id, channel.to_string(), payload.clone()));
            }
        }
        self.0.queues.live.push_claimed(tx, process, &items(&live));
        self.0.queues.log.push(tx, &items(&log));
        self.0.queues.webhook.push(tx, &items(&webhook));
    }

    /// Publishes new notifications to the streams of their players.
    pub(crate) async fn publish(&self, created: &CreatedBatch) -> Published {
        fault::point("notification_live.claimed");
        let published =
            timeout(PUBLISH_TIMEOUT, stream::publish(&self.0.streams, live_notifications(created))).await;
        fault::point("notification_live.handled");
        match published {
            Ok(published) => published.map_err(|error| chain(&error)),
            Err(_) => Err(format!("not published within {PUBLISH_TIMEOUT:?}")),
        }
    }

    /// Finishes the deliveries to streams, or leaves them to the workers if publishing failed.
    pub(crate) async fn settle(&self, created: &CreatedBatch, published: Published) {
        let ids: Vec<Uuid> = live_notifications(created)
            .map(|notification| delivery_id(notification.notification_id, &Channel::Live))
            .collect();
        if ids.is_empty() {
            return;
        }
        let outcome = match published {
            Ok(()) => ItemOutcome::Done,
            Err(cause) => ItemOutcome::NotAttempted(cause),
        };
        if let Err(error) = self.0.queues.live.finish_claimed(&ids, &outcome).await {
            tracing::warn!(
                outage = "sql",
                cause = chain(&error),
                "cannot mark published notifications as delivered; they will be published again"
            );
        }
    }

    /// Lists all webhook destinations with their state.
    pub async fn destinations(&self) -> Result<Vec<DestinationView>, Error> {
        self.0.webhooks.list(&self.0.queues.webhook).await
    }

    /// Returns the queue of a channel, by the channel's name.
    pub(crate) fn queue(&self, kind: &str) -> Option<&WorkQueue> {
        match kind {
            "live" => Some(&self.0.queues.live),
            "log" => Some(&self.0.queues.log),
            "webhook" => Some(&self.0.queues.webhook),
            _ => None,
        }
    }

    /// Returns the deliveries of a notification, each with its channel. Finished ones are gone after the retention.
    pub async fn for_notification(&self, notification: Uuid) -> Result<Vec<(Channel, ItemView)>, db::Error> {
        let webhooks =
            self.0.webhooks.names().map(|name| (Channel::Webhook(name.to_owned()), &self.0.queues.webhook));
        let all = [(Channel::Live, &*self.0.queues.live), (Channel::Log, &self.0.queues.log)]
            .into_iter()
            .chain(webhooks);
        let mut found = Vec::new();
        for (channel, queue) in all {
            let item = queue.find(delivery_id(notification, &channel)).await?;
            found.extend(item.map(|item| (channel, item)));
        }
        Ok(found)
    }

    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.0.webhooks
    }

    /// Removes all deliveries to a user, in every state: also those whose notification was removed, and those to destinations that
    /// are no longer in the configuration.
    pub(crate) async fn erase(&self, tx: &mut Tx, user: Uuid) -> Result<(), db::Error> {
        for queue in self.0.queues.all() {
            queue.remove_user_in(tx, user).await?;
        }
        Ok(())
    }

    /// Works on the deliveries that were not published right after their commit, until `drain` is requested.
    pub async fn run(&self, process: ProcessId, drain: Drain) -> Result<(), LoopError> {
        let Inner { queues: ChannelQueues { live, log, webhook }, streams, webhooks, check } = &*self.0;
        let live =
            Worker::new(live.clone(), check.before(LIVE, stream::StreamHandler(streams.clone())), process);
        let log = Worker::new(log.clone(), check.before(LOG, log::LogHandler), process);
        let to_webhooks = check.before(WEBHOOK, webhooks.handler(webhook.clone()));
        let webhook = Worker::new(webhook.clone(), to_webhooks, process);
        // If one worker fails, the others stop as well, and supervision restarts all of them.
        let stop = drain.child();
        let (live, log, webhook) = futures::join!(
            stop_others_after(&stop, Box::pin(live.run(stop.clone()))),
            stop_others_after(&stop, Box::pin(log.run(stop.clone()))),
            stop_others_after(&stop, Box::pin(webhook.run(stop.clone()))),
        );
        live.and(log).and(webhook)
    }

    /// Removes finished deliveries after the retention, until `drain` is requested.
    pub async fn run_retention(&self, drain: Drain) -> Result<(), LoopError> {
        let stop = drain.child();
        let clean = |queue: &WorkQueue| {
            let (cleaner, stop) = (RetentionCleaner::new(queue.clone()), stop.clone());
            async move { stop_others_after(&stop, cleaner.run(stop.clone())).await }
        };
        let ChannelQueues { live, log, webhook } = &self.0.queues;
        let (live, log, webhook) = futures::join!(clean(live), clean(log), clean(webhook));
        live.and(log).and(webhook)
    }
}

/// Returns the state of a delivery or a broadcast as operators see it.
pub(crate) const fn state_word(state: State) -> &'static str {
    match state {
        State::InFlight => "PROCESSING",
        State::Done => "SENT",
        State::Skipped => State::Failed.word(),
        State::Held => "STOPPED",
        State::Pending | State::Failed => state.word(),
    }
}

/// Runs a worker, and requests `stop` when it has ended.
async fn stop_others_after(
    stop: &Drain,
    run: impl Future<Output = Result<(), LoopError>>,
) -> Result<(), LoopError> {
    let result = run.await;
    stop.request();
    result
}

/// Borrows (id, user, key, payload) tuples as queue items.
fn items(deliveries: &[(Uuid, Uuid, String, Vec<u8>)]) -> Vec<NewItem<'_>> {
    deliveries.iter().map(|(id, user, key, payload)| NewItem { id: *id, user: *user, key, payload }).collect()
}

/// Returns the notifications that go to streams.
fn live_notifications(created: &CreatedBatch) -> impl Iterator<Item = &Notification> {
    created.0.iter().filter(|one| one.message.channels.contains(&Channel::Live)).map(|one| &one.notification)
}

/// Returns the id of a delivery. It is always the same for the same notification and channel.
pub(crate) fn delivery_id(notification: Uuid, channel: &Channel) -> Uuid {
    match channel {
        Channel::Live | Channel::Log => notification,
        Channel::Webhook(name) => derived(&[notification.as_bytes(), name.as_bytes()]),
    }
}
