//! Messages between processes, through Redis.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use redis_store::{Channels, Redis};
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};

use crate::hub::Hubs;

/// How long the connection may be silent before it is pinged.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The most channels of one command.
const BATCH: usize = 1_000;
/// How long a subscriber waits for Redis to confirm its channel. After that it continues, and receives a gap on the confirmation.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The connections to Redis: one for publishing, and one for all subscriptions of this process, opened by the first subscription.
#[derive(Debug)]
pub(crate) struct RedisLink {
    redis: Redis,
    /// The start of the name of every channel.
    stem: String,
    requests: UnboundedSender<Request>,
    requested: Mutex<UnboundedReceiver<Request>>,
}

/// A request for a channel, named without the stem.
#[derive(Debug)]
enum Request {
    Subscribe(String, oneshot::Sender<()>),
    Unsubscribe(String),
}

impl RedisLink {
    pub(crate) fn new(redis: Redis, prefix: &str) -> Self {
        let (requests, requested) = unbounded_channel();
        let stem = redis.key_space("live", prefix).channel("live:");
        Self { redis, stem, requests, requested: Mutex::new(requested) }
    }

    fn name(&self, channel: &str) -> String {
        format!("{}{channel}", self.stem)
    }

    /// Publishes payloads on channels in one round trip. Returns how many processes received each.
    pub(crate) async fn publish(
        &self,
        messages: Vec<(String, Vec<u8>)>,
    ) -> Result<Vec<u64>, redis_store::Error> {
        let messages = messages.into_iter().map(|(channel, payload)| (self.name(&channel), payload));
        self.redis.publish(messages).await
    }

    /// Subscribes to a channel. Returns whether Redis confirmed it within [`SUBSCRIBE_TIMEOUT`].
    pub(crate) async fn subscribe(&self, channel: String) -> bool {
        let (done, confirmed) = oneshot::channel();
        let _ = self.requests.send(Request::Subscribe(channel, done));
        matches!(tokio::time::timeout(SUBSCRIBE_TIMEOUT, confirmed).await, Ok(Ok(())))
    }

    pub(crate) fn unsubscribe(&self, channel: String) {
        let _ = self.requests.send(Request::Unsubscribe(channel));
    }

    pub(crate) async fn run(&self, hubs: &Hubs, drain: Drain) -> Result<(), LoopError> {
        let mut requested = self.requested.lock().await;
        let mut first = None;
        // A process without subscribers opens no connection for them. If connecting fails, the first subscriber continues at once and
        // receives a gap later.
        while hubs.is_empty() {
            tokio::select! {
                () = drain.requested() => return Ok(()),
                request = requested.recv() => first = request,
            }
        }
        let (mut channels, messages) = self.redis.listen(PING_AFTER).await?;
        let mut messages = std::pin::pin!(messages);
        // Renews subscriptions from before this connection.
        self.subscribe_all(&mut channels, hubs, hubs.disconnected()).await?;
        self.apply(&mut channels, hubs, first.into_iter().collect()).await?;
        loop {
            tokio::select! {
                () = drain.requested() => return Ok(()),
                message = messages.next() => {
                    let Some(message) = message else { return Err("the connection to Redis was lost".into()) };
                    if let Some(channel) = message.get_channel_name().strip_prefix(&self.stem) {
                        hubs.deliver(channel, message.get_payload_bytes());
                    }
                }
                Some(request) = requested.recv() => {
                    let mut requests = vec![request];
                    while requests.len() < BATCH
                        && let Ok(request) = requested.try_recv()
                    {
                        requests.push(request);
                    }
                    self.apply(&mut channels, hubs, requests).await?;
                }
            }
        }
    }

    /// Subscribes to the requested channels that have a subscriber now and unsubscribes from the others, because a later request may
    /// have reversed an earlier one.
    async fn apply(
        &self,
        channels: &mut Channels,
        hubs: &Hubs,
        requests: Vec<Request>,
    ) -> Result<(), LoopError> {
        let mut waiting: HashMap<String, Vec<oneshot::Sender<()>>> = HashMap::new();
        for request in requests {
            match request {
                Request::Subscribe(channel, done) => waiting.entry(channel).or_default().push(done),
                Request::Unsubscribe(channel) => drop(waiting.entry(channel).or_default()),
            }
        }
        let (open, closed): (Vec<_>, Vec<_>) = waiting.keys().partition(|channel| hubs.is_open(channel));
        self.subscribe_all(channels, hubs, open.into_iter().cloned()).await?;
        if !closed.is_empty() {
            let names: Vec<String> = closed.into_iter().map(|channel| self.name(channel)).collect();
            channels.remove(&names).await?;
        }
        for done in waiting.into_values().flatten() {
            let _ = done.send(());
        }
        Ok(())
    }

    async fn subscribe_all(
        &self,
        channels: &mut Channels,
        hubs: &Hubs,
        mut all: impl Iterator<Item = String> + Send,
    ) -> Result<(), LoopError> {
        loop {
            let some: Vec<String> = all.by_ref().take(BATCH).collect();
            if some.is_empty() {
                return Ok(());
            }
            let names: Vec<String> = some.iter().map(|channel| self.name(channel)).collect();
            channels.add(&names).await?;
            hubs.connected(&some);
        }
    }
}
