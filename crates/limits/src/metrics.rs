//! The metrics of rate limits.

use std::ops::Deref;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Verdict;

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
    decisions: Family<DecisionLabels, Counter>,
    pub(crate) local: Counter,
    pub(crate) away: Gauge,
    pub(crate) entries: Gauge,
    pub(crate) crowded: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    policy: &'static str,
    outcome: &'static str,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Instruments {
            decisions: Family::default(),
            local: Counter::default(),
            away: Gauge::default(),
            entries: Gauge::default(),
            crowded: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("playhouse_limits");
        registry.register("decisions", "Decisions of each policy", this.decisions.clone());
        registry.register("local", "Decisions made alone because Redis was away", this.local.clone());
        registry.register("away", "1 while Redis is away and decisions are made alone", this.away.clone());
        registry.register("entries", "Buckets held in this process", this.entries.clone());
        registry.register(
            "crowded",
            "Decisions by a bucket that strangers share, because there were too many buckets",
            this.crowded.clone(),
        );
        Self(Arc::new(this))
    }
}

impl Instruments {
    /// Counts a decision. A bucket that would have allowed what another one refused decided nothing.
    pub(crate) fn decided(&self, verdict: &Verdict) {
        for state in &verdict.states {
            let outcome = match (verdict.allowed, state.retry_after) {
                (true, _) => "allowed",
                (false, Some(_)) => "refused",
                (false, None) => continue,
            };
            self.decisions.get_or_create(&DecisionLabels { policy: state.policy, outcome }).inc();
        }
    }
}
