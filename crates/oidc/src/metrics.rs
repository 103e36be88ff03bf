//! Metrics: verified tokens and requests to the issuer.

use std::ops::Deref;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
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
    pub(crate) tokens: Family<TokenLabels, Counter>,
    /// A member of `tokens`, resolved once because nearly every request increments it.
    pub(crate) cached: Counter,
    pub(crate) requests: Family<RequestLabels, Histogram>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct TokenLabels {
    pub(crate) kind: &'static str,
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) request: &'static str,
    pub(crate) outcome: &'static str,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("playhouse_oidc");
        let tokens = Family::<TokenLabels, Counter>::default();
        let cached = tokens.get_or_create(&TokenLabels { kind: "access", outcome: "cached" }).clone();
        let requests = Family::new_with_constructor(duration as fn() -> Histogram);
        registry.register(
            "tokens_checked",
            "Tokens that callers presented, by kind and outcome",
            tokens.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "Response time of the issuer",
            Unit::Seconds,
            requests.clone(),
        );
        Self(Arc::new(Instruments { tokens, cached, requests }))
    }
}

impl Instruments {
    pub(crate) fn token(&self, kind: &'static str, outcome: &'static str) {
        self.tokens.get_or_create(&TokenLabels { kind, outcome }).inc();
    }

    pub(crate) fn request(&self, request: &'static str, outcome: &'static str, seconds: f64) {
        self.requests.get_or_create(&RequestLabels { request, outcome }).observe(seconds);
    }
}

/// Buckets from 1 ms to 16 s.
fn duration() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}
