//! Deliveries: each notification on each of its channels is an item of that channel's queue.
//!
//! | state | reached by |
//! |---|---|
//! | PENDING | made with the notification; or put back after a failed attempt, with the time of the next one |
//! | PROCESSING | claimed by a worker, until its lease ends |
//! | SENT | delivered: published to the player's streams (or to nobody, when none is open), logged, accepted by the destination; or no longer to be delivered: expired, or the user is erased |
//! | FAILED | attempts used up; the same transaction writes the dead letter |
//!
//! The process that makes a notification has claimed its `live` delivery from the start, so it publishes the notification right after
//! the commit, without another transaction between. When that process dies, the lease ends and another one publishes it.

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
use work_queue::{Entry, Keeper, New, Outcome, Queue, State, Unordered, Worker};

use crate::dead::Bury;
use crate::model::{Channel, Notification, derived};
use crate::service::{Made, MadeOne};
use crate::{Config, Error};

pub use self::check::Check;
use self::webhooks::Shown;
pub use self::webhooks::Webhooks;

/// The queues, by channel.
pub const LIVE: &str = "notification_live";
pub const LOG: &str = "notification_log";
pub const WEBHOOK: &str = "notification_webhook";

/// How long publishing to streams may take: a Redis that does not answer must not hold up the inboxes.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(500);

/// The queues of all channels, and where they deliver to. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Deliveries(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queues: ChannelQueues,
    streams: Live,
    webhooks: Webhooks,
    check: Check,
}

/// The queue of each channel.
#[derive(Debug)]
pub struct ChannelQueues {
    live: Unordered,
    log: Queue,
    webhook: Queue,
}

impl ChannelQueues {
    pub fn new(db: &Db, config: &Config, metrics: &work_queue::Metrics, clock: &Clock) -> Self {
        let queue = |table, config: &work_queue::Config| {
            let queue = Queue::new(table, db.clone(), config.clone(), metrics.of(table), clock.clone());
            queue.on_failed(Arc::new(Bury)).unordered()
        };
        Self {
            live: queue(LIVE, &config.delivery),
            log: queue(LOG, &config.delivery).into(),
            webhook: queue(WEBHOOK, &config.webhook_delivery).into(),
        }
    }

    fn all(&self) -> [&Queue; 3] {
        [&*self.live, &self.log, &self.webhook]
    }
}

/// Whether notifications were published to the streams, and if not, why.
pub(crate) type Published = Result<(), String>;

impl Deliveries {
    pub fn new(queues: ChannelQueues, streams: Live, webhooks: Webhooks, check: Check) -> Self {
        Self(Arc::new(Inner { queues, streams, webhooks, check }))
    }

    pub(crate) fn queues(&self) -> [&Queue; 3] {
        self.0.queues.all()
    }

    /// Adds the deliveries of what was made. Those to streams are claimed by this process.
    pub(crate) fn push(&self, tx: &mut Tx, process: ProcessId, made: &[MadeOne]) {
        let (mut live, mut log, mut webhook) = (Vec::new(), Vec::new(), Vec::new());
        for one in made {
            let notification = &one.notification;
            // It is made of plain values.
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

    /// Publishes the notifications that were made to the streams of their players.
    pub(crate) async fn publish(&self, made: &Made) -> Published {
        fault::point("notification_live.claimed");
        let published = timeout(PUBLISH_TIMEOUT, stream::publish(&self.0.streams, live_of(made))).await;
        fault::point("notification_live.handled");
        match published {
            Ok(published) => published.map_err(|error| chain(&error)),
            Err(_) => Err(format!("not published within {PUBLISH_TIMEOUT:?}")),
        }
    }

    /// Finishes the deliveries to streams, or leaves them to the workers if publishing failed.
    pub(crate) async fn settle(&self, made: &Made, published: Published) {
        let ids: Vec<Uuid> = live_of(made)
            .map(|notification| delivery_id(notification.notification_id, &Channel::Live))
            .collect();
        if ids.is_empty() {
            return;
        }
        let outcome = match published {
            Ok(()) => Outcome::Done,
            Err(cause) => Outcome::NotTried(cause),
        };
        if let Err(error) = self.0.queues.live.finish_claimed(&ids, &outcome).await {
            tracing::warn!(
                outage = "sql",
                cause = chain(&error),
                "notifications were published, but their deliveries are not finished: they are published again"
            );
        }
    }

    /// All webhook destinations, with those that are disabled or rest.
    pub async fn destinations(&self) -> Result<Vec<Shown>, Error> {
        self.0.webhooks.list(&self.0.queues.webhook).await
    }

    /// The queue of a channel, by its word.
    pub(crate) fn queue(&self, kind: &str) -> Option<&Queue> {
        match kind {
            "live" => Some(&self.0.queues.live),
            "log" => Some(&self.0.queues.log),
            "webhook" => Some(&self.0.queues.webhook),
            _ => None,
        }
    }

    /// The deliveries of a notification that are known still, each with its channel.
    pub async fn of(&self, notification: Uuid) -> Result<Vec<(Channel, Entry)>, db::Error> {
        let webhooks =
            self.0.webhooks.names().map(|name| (Channel::Webhook(name.to_owned()), &self.0.queues.webhook));
        let all = [(Channel::Live, &*self.0.queues.live), (Channel::Log, &self.0.queues.log)]
            .into_iter()
            .chain(webhooks);
        let mut found = Vec::new();
        for (channel, queue) in all {
            let entry = queue.find(delivery_id(notification, &channel)).await?;
            found.extend(entry.map(|entry| (channel, entry)));
        }
        Ok(found)
    }

    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.0.webhooks
    }

    /// Removes the deliveries to a user, whatever their state: also those whose notification is gone, and those to destinations that
    /// are no longer in the configuration.
    pub(crate) async fn erase(&self, tx: &mut Tx, user: Uuid) -> Result<(), db::Error> {
        for queue in self.0.queues.all() {
            queue.remove_user_in(tx, user).await?;
        }
        Ok(())
    }

    /// Delivers what nobody has delivered at once, until told to stop.
    pub async fn run(&self, process: ProcessId, drain: Drain) -> Result<(), LoopError> {
        let Inner { queues: ChannelQueues { live, log, webhook }, streams, webhooks, check } = &*self.0;
        let live = Worker::new(live.clone(), check.before(LIVE, stream::ToStreams(streams.clone())), process);
        let log = Worker::new(log.clone(), check.before(LOG, log::ToLog), process);
        let to_webhooks = check.before(WEBHOOK, webhooks.handler(webhook.clone()));
        let webhook = Worker::new(webhook.clone(), to_webhooks, process);
        // When one cannot go on the others stop, too, so that all are started again.
        let stop = drain.child();
        let (live, log, webhook) = futures::join!(
            ending(&stop, Box::pin(live.run(stop.clone()))),
            ending(&stop, Box::pin(log.run(stop.clone()))),
            ending(&stop, Box::pin(webhook.run(stop.clone()))),
        );
        live.and(log).and(webhook)
    }

    /// Removes what was delivered long enough ago, until told to stop.
    pub async fn keep(&self, drain: Drain) -> Result<(), LoopError> {
        let stop = drain.child();
        let keep = |queue: &Queue| {
            let (keeper, stop) = (Keeper::new(queue.clone()), stop.clone());
            async move { ending(&stop, keeper.run(stop.clone())).await }
        };
        let ChannelQueues { live, log, webhook } = &self.0.queues;
        let (live, log, webhook) = futures::join!(keep(live), keep(log), keep(webhook));
        live.and(log).and(webhook)
    }
}

/// The state of a delivery or a broadcast, in a word.
pub(crate) const fn state_word(state: State) -> &'static str {
    match state {
        State::InFlight => "PROCESSING",
        State::Done => "SENT",
        State::Skipped => State::Failed.word(),
        State::Held => "STOPPED",
        State::Pending | State::Failed => state.word(),
    }
}

/// Has others stop when this has ended.
async fn ending(stop: &Drain, run: impl Future<Output = Result<(), LoopError>>) -> Result<(), LoopError> {
    let ended = run.await;
    stop.request();
    ended
}

/// Id, user, key and payload of each.
fn items(deliveries: &[(Uuid, Uuid, String, Vec<u8>)]) -> Vec<New<'_>> {
    deliveries.iter().map(|(id, user, key, payload)| New { id: *id, user: *user, key, payload }).collect()
}

/// Those that go to streams.
fn live_of(made: &Made) -> impl Iterator<Item = &Notification> {
    made.0.iter().filter(|one| one.message.channels.contains(&Channel::Live)).map(|one| &one.notification)
}

/// The name of a delivery: always the same for the same notification and destination.
pub(crate) fn delivery_id(notification: Uuid, channel: &Channel) -> Uuid {
    match channel {
        Channel::Live | Channel::Log => notification,
        Channel::Webhook(name) => derived(&[notification.as_bytes(), name.as_bytes()]),
    }
}
