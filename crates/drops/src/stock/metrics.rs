//! The metrics of live stock.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct StockMetrics {
    attempts: Family<AttemptLabel, Counter>,
    failures: Counter,
    received: Counter,
    reads: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AttemptLabel {
    outcome: &'static str,
}

impl StockMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self {
            attempts: Family::default(),
            failures: Counter::default(),
            received: Counter::default(),
            reads: Counter::default(),
        };
        registry.register(
            "inventory_pubsub_failure",
            "Stock changes that were not published after three attempts: watchers see them at the next full sync",
            this.failures.clone(),
        );
        registry.register(
            "playhouse_drops_stock_publish_attempts",
            "Attempts to publish a stock change, by outcome: published, failed",
            this.attempts.clone(),
        );
        registry.register(
            "playhouse_drops_stock_feed_messages",
            "Stock changes that this process received for its watchers",
            this.received.clone(),
        );
        registry.register(
            "playhouse_drops_stock_feed_reads",
            "Stocks that this process read from SQL for its watchers: at the first watch, after a gap and at each full sync",
            this.reads.clone(),
        );
        this
    }

    pub(super) fn published(&self) {
        self.attempts.get_or_create(&AttemptLabel { outcome: "published" }).inc();
    }

    pub(super) fn attempt_failed(&self) {
        self.attempts.get_or_create(&AttemptLabel { outcome: "failed" }).inc();
    }

    pub(super) fn publish_failed(&self) {
        self.failures.inc();
    }

    pub(super) fn received(&self) {
        self.received.inc();
    }

    pub(super) fn read(&self) {
        self.reads.inc();
    }
}
