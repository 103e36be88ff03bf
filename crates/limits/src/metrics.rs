//! Metrics of rate limits.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::tally::AllCounts;
use crate::{Counts, Rule};

/// Metrics of rate limits. Cheap to clone; clones share state.
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
    /// The counters of `decisions`, so that they can be listed.
    rules: RwLock<HashMap<Rule, RuleCounters>>,
    pub(crate) local: Counter,
    pub(crate) unreachable: Gauge,
    pub(crate) entries: Gauge,
    pub(crate) overflowed: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    policy: &'static str,
    key_kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug)]
struct RuleCounters {
    allowed: Counter,
    refused: Counter,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Instruments {
            decisions: Family::default(),
            rules: RwLock::default(),
            local: Counter::default(),
            unreachable: Gauge::default(),
            entries: Gauge::default(),
            overflowed: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("playhouse_limits");
        registry.register("decisions", "Decisions of each policy, by kind of key", this.decisions.clone());
        registry.register(
            "local",
            "Decisions of this process on its own, because Redis was unreachable",
            this.local.clone(),
        );
        registry.register(
            "away",
            "1 while Redis is unreachable and this process decides on its own",
            this.unreachable.clone(),
        );
        registry.register("entries", "Buckets in this process", this.entries.clone());
        registry.register(
            "crowded",
            "Decisions by a shared bucket, because there were too many keys",
            this.overflowed.clone(),
        );
        Self(Arc::new(this))
    }
}

impl Instruments {
    pub(crate) fn allowed(&self, rule: Rule) {
        self.with(rule, |counters| counters.allowed.inc());
    }

    pub(crate) fn refused(&self, rule: Rule) {
        self.with(rule, |counters| counters.refused.inc());
    }

    /// Returns the decisions of every rule since the start.
    pub(crate) fn counts(&self) -> AllCounts {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let counts = |counters: &RuleCounters| Counts {
            allowed: counters.allowed.get(),
            refused: counters.refused.get(),
        };
        rules.iter().map(|(rule, counters)| (*rule, counts(counters))).collect()
    }

    fn with<T>(&self, rule: Rule, count: impl FnOnce(&RuleCounters) -> T) -> T {
        if let Some(counters) = self.rules.read().unwrap_or_else(PoisonError::into_inner).get(&rule) {
            return count(counters);
        }
        let counter = |outcome| {
            let labels = DecisionLabels { policy: rule.policy, key_kind: rule.kind.as_str(), outcome };
            self.decisions.get_or_create(&labels).clone()
        };
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let counters = rules
            .entry(rule)
            .or_insert_with(|| RuleCounters { allowed: counter("allowed"), refused: counter("refused") });
        count(counters)
    }
}
