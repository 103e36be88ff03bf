//! Metrics of the listeners.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;
use runtime::Metrics;

use crate::connection_limit::Refusal;

/// Metrics of the HTTP listeners, named by OpenTelemetry's conventions.
#[derive(Clone, Debug)]
pub(crate) struct HttpMetrics {
    pub(crate) duration: Family<HttpLabels, Histogram>,
    pub(crate) active: Family<ListenerLabels, Gauge>,
    pub(crate) panics: Family<ListenerLabels, Counter>,
    open: Family<ListenerLabels, Gauge>,
    refused: Family<RefusalLabels, Counter>,
    cut: Family<ListenerLabels, Counter>,
    streams_reset: Family<ListenerLabels, Counter>,
    pub(crate) counts: ConnectionCounts,
}

/// The connections of the listeners of a process, for operators. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounts(Arc<Mutex<Vec<ConnectionMetrics>>>);

/// The connections of one listener since the process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerConnections {
    pub listener: &'static str,
    pub open: u64,
    /// Refused because the listener had its most connections.
    pub refused_full: u64,
    /// Refused because the address had its most connections.
    pub refused_address: u64,
}

impl ConnectionCounts {
    /// Returns the listeners in the order in which they were started.
    pub fn read(&self) -> Vec<ListenerConnections> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = |metrics: &ConnectionMetrics| ListenerConnections {
            listener: metrics.listener,
            open: metrics.open.get().try_into().unwrap_or_default(),
            refused_full: metrics.refused(Refusal::Full.word()).get(),
            refused_address: metrics.refused(Refusal::Address.word()).get(),
        };
        listeners.iter().map(counts).collect()
    }

    fn add(&self, metrics: &ConnectionMetrics) {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if listeners.iter().all(|known| known.listener != metrics.listener) {
            listeners.push(metrics.clone());
        }
    }
}

/// Connection metrics of one listener.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionMetrics {
    listener: &'static str,
    pub(crate) open: Gauge,
    pub(crate) cut: Counter,
    pub(crate) streams_reset: Counter,
    refused: Family<RefusalLabels, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct HttpLabels {
    pub(crate) listener: &'static str,
    pub(crate) http_request_method: &'static str,
    pub(crate) http_route: String,
    pub(crate) http_response_status_code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ListenerLabels {
    pub(crate) listener: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    listener: &'static str,
    reason: &'static str,
}

impl HttpMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        // 0.1 ms to 26 s.
        let buckets = || Histogram::new(exponential_buckets(0.000_1, 4.0, 10));
        let this = Self {
            duration: Family::new_with_constructor(buckets),
            active: Family::default(),
            panics: Family::default(),
            open: Family::default(),
            refused: Family::default(),
            cut: Family::default(),
            streams_reset: Family::default(),
            counts: ConnectionCounts::default(),
        };
        metrics.register(|registry| {
            registry.register_with_unit(
                "http_server_request_duration",
                "Time from the head of the request to the head of the response",
                Unit::Seconds,
                this.duration.clone(),
            );
            registry.register("http_server_active_requests", "Requests in progress", this.active.clone());
            registry.register("playhouse_http_panics", "Handlers that panicked", this.panics.clone());
            registry.register("playhouse_http_connections", "Open connections", this.open.clone());
            registry.register(
                "playhouse_http_connections_refused",
                "Connections refused because of a connection limit",
                this.refused.clone(),
            );
            registry.register(
                "playhouse_http_connections_cut",
                "Connections closed because the client did not read its responses, or kept cancelling its requests",
                this.cut.clone(),
            );
            registry.register(
                "playhouse_http_streams_reset",
                "HTTP/2 streams reset because the client did not read the response",
                this.streams_reset.clone(),
            );
        });
        this
    }

    pub(crate) fn connections(&self, listener: &'static str) -> ConnectionMetrics {
        let labels = ListenerLabels { listener };
        let metrics = ConnectionMetrics {
            listener,
            open: self.open.get_or_create(&labels).clone(),
            cut: self.cut.get_or_create(&labels).clone(),
            streams_reset: self.streams_reset.get_or_create(&labels).clone(),
            refused: self.refused.clone(),
        };
        self.counts.add(&metrics);
        metrics
    }
}

impl ConnectionMetrics {
    pub(crate) fn refused(&self, reason: &'static str) -> Counter {
        self.refused.get_or_create(&RefusalLabels { listener: self.listener, reason }).clone()
    }
}
