//! The metrics of queues. The queue is a label.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::Finished;

/// The metrics of all queues of a process.
#[derive(Clone, Debug)]
struct Families {
    claimed: Family<QueueLabels, Counter>,
    finished: Family<OutcomeLabels, Counter>,
    put_off: Family<QueueLabels, Counter>,
    removed: Family<QueueLabels, Counter>,
    claim_time: Family<QueueLabels, Histogram>,
    open: Family<QueueLabels, Gauge>,
    failed: Family<QueueLabels, Gauge>,
    oldest: Family<QueueLabels, Gauge<f64, AtomicU64>>,
}

/// The metrics of one queue. Clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    families: Arc<Families>,
    queue: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueueLabels {
    queue: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    queue: &'static str,
    outcome: &'static str,
}

impl Metrics {
    /// Declares the metrics and returns those of one queue; [`of`](Self::of) has the others.
    pub fn new(registry: &mut Registry, queue: &'static str) -> Self {
        // 0.2 ms to 6.5 s.
        let times = || Histogram::new(exponential_buckets(0.000_2, 2.0, 16));
        let families = Families {
            claimed: Family::default(),
            finished: Family::default(),
            put_off: Family::default(),
            removed: Family::default(),
            claim_time: Family::new_with_constructor(times),
            open: Family::default(),
            failed: Family::default(),
            oldest: Family::default(),
        };
        registry.register("work_claimed", "Items that were claimed", families.claimed.clone());
        registry.register(
            "work_finished",
            "Items by what became of them: done, again, failed, not_tried, later, stale (the lease had ended)",
            families.finished.clone(),
        );
        registry.register(
            "work_put_off",
            "Items that were due and had to wait for another of their key",
            families.put_off.clone(),
        );
        registry.register("work_removed", "Finished items that were removed", families.removed.clone());
        registry.register_with_unit(
            "work_claim_duration",
            "Time to claim a batch",
            Unit::Seconds,
            families.claim_time.clone(),
        );
        registry.register("work_open", "Items that are pending or in flight", families.open.clone());
        registry.register("work_failed", "Items that wait for an operator", families.failed.clone());
        registry.register_with_unit(
            "work_oldest_age",
            "How long the first item in line has been due",
            Unit::Seconds,
            families.oldest.clone(),
        );
        Self { families: Arc::new(families), queue }
    }

    /// Those of another queue.
    pub fn of(&self, queue: &'static str) -> Self {
        Self { families: self.families.clone(), queue }
    }

    fn labels(&self) -> QueueLabels {
        QueueLabels { queue: self.queue }
    }

    pub(crate) fn claimed(&self, items: usize, took: Duration) {
        self.families.claimed.get_or_create(&self.labels()).inc_by(items as u64);
        self.families.claim_time.get_or_create(&self.labels()).observe(took.as_secs_f64());
    }

    pub(crate) fn finished(&self, finished: &Finished) {
        let Finished { done, again, failed, not_tried, later, stale } = *finished;
        let all = [
            ("done", done),
            ("again", again),
            ("failed", failed),
            ("not_tried", not_tried),
            ("later", later),
            ("stale", stale),
        ];
        for (outcome, count) in all.into_iter().filter(|(_, count)| *count > 0) {
            let labels = OutcomeLabels { queue: self.queue, outcome };
            self.families.finished.get_or_create(&labels).inc_by(count as u64);
        }
    }

    pub(crate) fn put_off(&self, items: usize) {
        if items > 0 {
            self.families.put_off.get_or_create(&self.labels()).inc_by(items as u64);
        }
    }

    pub(crate) fn gave_up(&self, items: usize) {
        self.finished(&Finished { failed: items, ..Finished::default() });
    }

    pub(crate) fn removed(&self, items: usize) {
        self.families.removed.get_or_create(&self.labels()).inc_by(items as u64);
    }

    pub(crate) fn counted(&self, open: i64, failed: i64, oldest: Duration) {
        self.families.open.get_or_create(&self.labels()).set(open);
        self.families.failed.get_or_create(&self.labels()).set(failed);
        self.families.oldest.get_or_create(&self.labels()).set(oldest.as_secs_f64());
    }

    /// How often outcomes came too late.
    pub fn stale(&self) -> u64 {
        let labels = OutcomeLabels { queue: self.queue, outcome: "stale" };
        self.families.finished.get_or_create(&labels).get()
    }
}
