//! The metrics of outgoing requests.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Instruments>);

impl Deref for Metrics {
    type Target = Instruments;

    fn deref(&self) -> &Instruments {
        &self.0
    }
}

#[derive(Debug)]
pub struct Instruments {
    requests: Family<RequestLabels, Histogram>,
    deferred: Family<DeferredLabels, Counter>,
    resting: Family<DestinationLabels, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    destination: Arc<str>,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeferredLabels {
    destination: Arc<str>,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DestinationLabels {
    destination: Arc<str>,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Instruments {
            requests: Family::new_with_constructor(duration as fn() -> Histogram),
            deferred: Family::default(),
            resting: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("playhouse_webhook");
        registry.register_with_unit(
            "request_duration",
            "Duration of requests to a destination, by outcome",
            Unit::Seconds,
            this.requests.clone(),
        );
        registry.register(
            "put_off",
            "Messages that were deferred because the destination backs off or has max_in_flight requests",
            this.deferred.clone(),
        );
        registry.register(
            "resting",
            "1 from a failure of the destination to its next success, otherwise 0",
            this.resting.clone(),
        );
        Self(Arc::new(this))
    }
}

impl Instruments {
    pub(crate) fn request(&self, destination: &Arc<str>, outcome: &'static str, took: Duration) {
        let labels = RequestLabels { destination: destination.clone(), outcome };
        self.requests.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn deferred(&self, destination: &Arc<str>, reason: &'static str) {
        self.deferred.get_or_create(&DeferredLabels { destination: destination.clone(), reason }).inc();
    }

    pub(crate) fn resting(&self, destination: &Arc<str>) -> Gauge {
        self.resting.get_or_create(&DestinationLabels { destination: destination.clone() }).clone()
    }
}

/// From 1 ms to 65 s.
fn duration() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let (mut registry, mut text) = (Registry::default(), String::new());
        let (metrics, name) = (Metrics::new(&mut registry), "shop".into());
        metrics.request(&name, "delivered", Duration::ZERO);
        metrics.deferred(&name, "resting");
        metrics.resting(&name);
        encode(&mut text, &registry).unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let names: Vec<&str> = types.collect();
        assert_eq!(names.len(), 3, "{text}");
        let documented = include_str!("../../../docs/reference/metrics.md");
        for name in names {
            let row = format!("| `{name}` |");
            assert!(documented.contains(&row), "{name} is not in docs/reference/metrics.md");
        }
    }
}
