//! Metrics of the gateway and of its sessions.

use std::ops::Deref;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of the gateway. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Instruments>);

impl Deref for Metrics {
    type Target = Instruments;

    fn deref(&self) -> &Instruments {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Instruments {
    pub(crate) sessions: sessions::Metrics,
    pub(crate) parts_unavailable: Family<PartLabels, Counter>,
    pub(crate) streams: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PartLabels {
    pub(crate) part: &'static str,
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let this = Instruments {
            sessions: sessions::Metrics::new(registry),
            parts_unavailable: Family::default(),
            streams: Gauge::default(),
        };
        registry.register(
            "playhouse_gateway_parts_unavailable",
            "Parts that were missing in an aggregated response",
            this.parts_unavailable.clone(),
        );
        registry.register("playhouse_gateway_streams", "Open streams", this.streams.clone());
        Self(Arc::new(this))
    }

    pub(crate) fn part_unavailable(&self, part: &'static str) {
        self.parts_unavailable.get_or_create(&PartLabels { part }).inc();
    }
}
