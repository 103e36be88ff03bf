//! The metrics of entitlements.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    duration: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    outcome: &'static str,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        // 0.5 ms to 16 s.
        let duration = Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        let this = Self { requests: Family::default(), duration };
        registry.register(
            "playhouse_entitlement_requests",
            "Requests to change entitlements that succeeded: applied (done), or answered with the recorded response (replayed)",
            this.requests.clone(),
        );
        registry.register_with_unit(
            "playhouse_entitlement_request_duration",
            "Time to change entitlements, including the wait for locks",
            Unit::Seconds,
            this.duration.clone(),
        );
        this
    }

    pub(crate) fn succeeded(&self, is_replayed: bool, took: Duration) {
        let outcome = if is_replayed { "replayed" } else { "done" };
        self.requests.get_or_create(&RequestLabels { outcome }).inc();
        self.duration.observe(took.as_secs_f64());
    }
}
