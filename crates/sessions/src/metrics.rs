//! Metrics of sign-in and sessions. Their names begin with `playhouse_gateway`, because the gateway is the role that exports them.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of sign-in and sessions. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Instruments>);

#[derive(Debug)]
struct Instruments {
    security_events: Family<EventLabels, Counter>,
    refreshes: Family<OutcomeLabels, Counter>,
    unrecorded_ends: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let (security_events, refreshes, unrecorded_ends) = Default::default();
        let this = Instruments { security_events, refreshes, unrecorded_ends };
        registry.register(
            "playhouse_gateway_security_events",
            "Security events, as in the audit log",
            this.security_events.clone(),
        );
        registry.register(
            "playhouse_gateway_refreshes",
            "Session refreshes at the issuer, by outcome",
            this.refreshes.clone(),
        );
        registry.register(
            "playhouse_gateway_unrecorded_session_ends",
            "Ended sessions whose end is not recorded in the database yet",
            this.unrecorded_ends.clone(),
        );
        Self(Arc::new(this))
    }

    pub(crate) fn security_event(&self, event: &'static str) {
        self.0.security_events.get_or_create(&EventLabels { event }).inc();
    }

    pub(crate) fn refreshed(&self, outcome: &'static str) {
        self.0.refreshes.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn unrecorded_ends(&self, count: usize) {
        self.0.unrecorded_ends.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
