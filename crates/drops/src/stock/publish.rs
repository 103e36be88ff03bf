//! Publishes stock changes to watchers in all processes.
//!
//! # Invariants
//! - **A purchase neither waits for a message nor fails with it.** A separate task sends messages after the commit.
//! - **Per drop, one message is in flight and one is queued**, the newest. A drop sends at most one message per `min_interval`.
//!
//! # Failure modes
//! A message that cannot be serialized or sent is dropped after three attempts, with a metric and a WARN. A process that dies loses its
//! queued messages. Watchers see the change at their next full sync.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Backoff;
use live::{Live, Topic};

use super::Stock;
use super::metrics::StockMetrics;
use super::snapshot::{Snapshot, StockChanged};
use crate::DropId;

const ATTEMPTS: u32 = 3;

/// How often live stock is published and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// The minimum time between two messages about a drop from one process, and between two updates of its watchers in one process.
    pub min_interval: Duration,
    /// How often a watched stock is read from SQL, whatever messages were received.
    pub sync_interval: Duration,
    /// How long to wait after a failed attempt to publish.
    pub retry: Backoff,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            min_interval: Duration::from_millis(200),
            sync_interval: Duration::from_secs(15),
            retry: Backoff::new(Duration::from_millis(50), Duration::from_secs(1)),
        }
    }
}

/// Publishes the stock changes of this process. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct StockPublisher(Arc<Inner>);

struct Inner {
    live: Live,
    options: LiveOptions,
    metrics: StockMetrics,
    /// The drops that have a task, each with the change to send next.
    queued: Mutex<HashMap<DropId, Option<Snapshot>>>,
}

/// Why an attempt to publish failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the message cannot be serialized")]
    Encoding(#[from] serde_json::Error),
    #[error(transparent)]
    Redis(#[from] redis_store::Error),
}

impl StockPublisher {
    pub fn new(live: Live, options: LiveOptions, metrics: StockMetrics) -> Self {
        Self(Arc::new(Inner { live, options, metrics, queued: Mutex::default() }))
    }

    /// Publishes every change that `stock` commits from now on.
    pub fn follow(&self, stock: &Stock) {
        let this = self.clone();
        stock.on_change(move |drop, levels| this.offer(Snapshot::new(drop, levels)));
    }

    /// Queues a change. Starts the drop's task if there is none.
    fn offer(&self, snapshot: Snapshot) {
        match self.queued().entry(snapshot.drop) {
            Entry::Occupied(mut queued) => {
                // Listeners may see two commits in either order.
                if queued.get().is_none_or(|queued| queued.version < snapshot.version) {
                    queued.insert(Some(snapshot));
                }
                return;
            }
            Entry::Vacant(vacant) => vacant.insert(Some(snapshot)),
        };
        tokio::spawn(self.clone().send_queued(snapshot.drop));
    }

    /// Sends the queued changes of a drop until there is none.
    async fn send_queued(self, drop: DropId) {
        let Inner { live, options, metrics, .. } = &*self.0;
        while let Some(snapshot) = self.next(drop) {
            if let Err(failure) =
                publish::<StockChanged>(live, options.retry, metrics, drop, || snapshot).await
            {
                tracing::warn!(
                    outage = "redis", %drop, version = snapshot.version, attempts = ATTEMPTS, cause = base::error::chain(&failure),
                    "a stock change was not published; watchers see it at their next full sync"
                );
            }
            tokio::time::sleep(options.min_interval).await;
        }
    }

    /// Takes the change to send next. Without one, removes the drop, and its task ends.
    fn next(&self, drop: DropId) -> Option<Snapshot> {
        let mut queued = self.queued();
        let next = queued.get_mut(&drop)?.take();
        if next.is_none() {
            queued.remove(&drop);
        }
        next
    }

    fn queued(&self) -> MutexGuard<'_, HashMap<DropId, Option<Snapshot>>> {
        self.0.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes a message with up to [`ATTEMPTS`] attempts. Fails with the error of the last one.
async fn publish<T: Topic>(
    live: &Live,
    retry: Backoff,
    metrics: &StockMetrics,
    key: T::Key,
    message: impl Fn() -> T::Message,
) -> Result<(), Failure> {
    let mut failures = 0;
    loop {
        match attempt::<T>(live, key.clone(), message()).await {
            Ok(()) => {
                metrics.published();
                return Ok(());
            }
            Err(failure) => {
                failures += 1;
                metrics.attempt_failed();
                if failures == ATTEMPTS {
                    metrics.publish_failed();
                    return Err(failure);
                }
                tokio::time::sleep(retry.after(failures)).await;
            }
        }
    }
}

async fn attempt<T: Topic>(live: &Live, key: T::Key, message: T::Message) -> Result<(), Failure> {
    // For a message that cannot be serialized, `live` would send a gap, and all watchers would read SQL.
    serde_json::to_writer(std::io::sink(), &message)?;
    live.publish::<T>(key, message).await?;
    Ok(())
}

impl fmt::Debug for StockPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StockPublisher").field("options", &self.0.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use redis_store::RedisStore;
    use serde::{Deserialize, Serialize, Serializer};

    use super::*;

    #[derive(Deserialize)]
    struct Unserializable;

    impl Serialize for Unserializable {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("broken"))
        }
    }

    enum Broken {}

    impl Topic for Broken {
        type Key = DropId;
        type Message = Unserializable;
        const NAME: &'static str = "broken";
    }

    #[tokio::test]
    async fn unserializable_message_is_dropped_after_three_attempts() {
        let mut registry = Registry::default();
        let metrics = StockMetrics::new(&mut registry);
        let live = Live::new(&RedisStore::Memory, "");
        let retry = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
        let published =
            publish::<Broken>(&live, retry, &metrics, DropId::generate(), || Unserializable).await;
        assert!(matches!(published, Err(Failure::Encoding(_))), "{published:?}");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("\ninventory_pubsub_failure_total 1\n"), "{text}");
        assert!(
            text.contains("playhouse_drops_stock_publish_attempts_total{outcome=\"failed\"} 3\n"),
            "{text}"
        );
    }
}
