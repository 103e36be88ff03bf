//! The metrics of the gateway.

use std::ops::Deref;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics of this process. Clones are the same.
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
    pub(crate) security_events: Family<EventLabels, Counter>,
    pub(crate) refreshes: Family<OutcomeLabels, Counter>,
    pub(crate) parts_unavailable: Family<PartLabels, Counter>,
    pub(crate) streams: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct EventLabels {
    pub(crate) event: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct OutcomeLabels {
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PartLabels {
    pub(crate) part: &'static str,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Instruments {
            security_events: Family::default(),
            refreshes: Family::default(),
            parts_unavailable: Family::default(),
            streams: Gauge::default(),
        };
        registry.register(
            "playhouse_gateway_security_events",
            "Security events, as the audit log has them",
            this.security_events.clone(),
        );
        registry.register(
            "playhouse_gateway_refreshes",
            "Sessions that were refreshed at the issuer, by what came of it",
            this.refreshes.clone(),
        );
        registry.register(
            "playhouse_gateway_parts_unavailable",
            "Parts that were missing in an answer that is put together",
            this.parts_unavailable.clone(),
        );
        registry.register("playhouse_gateway_streams", "Open streams", this.streams.clone());
        Self(Arc::new(this))
    }

    pub(crate) fn refreshed(&self, outcome: &'static str) {
        self.refreshes.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn part_unavailable(&self, part: &'static str) {
        self.parts_unavailable.get_or_create(&PartLabels { part }).inc();
    }
}
