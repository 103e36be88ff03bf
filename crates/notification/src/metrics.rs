//! The metrics of notifications.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::intake::Taken;

/// The metrics of this process. Clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    events: Family<OutcomeLabels, Counter>,
    made: Counter,
    filled: Counter,
    unknown: Counter,
    withheld: Family<WhyLabels, Counter>,
    letters: Family<KindLabels, Gauge>,
    removed: Family<WhatLabels, Counter>,
    repaired: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WhyLabels {
    why: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WhatLabels {
    what: &'static str,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            events: Family::default(),
            made: Counter::default(),
            filled: Counter::default(),
            unknown: Counter::default(),
            withheld: Family::default(),
            letters: Family::default(),
            removed: Family::default(),
            repaired: Counter::default(),
        };
        registry.register(
            "playhouse_notification_events",
            "Events that came from the bus: taken (in an inbox now, or of no concern to anybody), repeated, dead",
            metrics.events.clone(),
        );
        registry.register(
            "playhouse_notification_made",
            "Notifications that were put into an inbox",
            metrics.made.clone(),
        );
        registry.register(
            "playhouse_notification_filled",
            "Events read from the stream because the process that had them did not take them in within a second",
            metrics.filled.clone(),
        );
        registry.register(
            "playhouse_notification_unknown_users",
            "Users in events who do not exist or are erased: they have no inbox",
            metrics.unknown.clone(),
        );
        registry.register(
            "playhouse_notification_withheld",
            "Deliveries that were not made, because the notification had expired or the user was erased",
            metrics.withheld.clone(),
        );
        registry.register(
            "playhouse_notification_dead_letters",
            "Dead letters that wait for an operator, by what they are: event, live, log, webhook, broadcast",
            metrics.letters.clone(),
        );
        registry.register(
            "playhouse_notification_removed",
            "What was removed because its time was over: notification, event (no longer remembered), letter",
            metrics.removed.clone(),
        );
        registry.register(
            "playhouse_notification_streams_repaired",
            "Streams that had not heard of something that is in the inbox, and were told to look",
            metrics.repaired.clone(),
        );
        metrics
    }

    pub(crate) fn taken(&self, taken: &Taken) {
        let Taken { events, repeated, dead, .. } = *taken;
        let others = events.saturating_sub(repeated + dead);
        for (outcome, count) in [("taken", others), ("repeated", repeated), ("dead", dead)] {
            if count > 0 {
                self.events.get_or_create(&OutcomeLabels { outcome }).inc_by(count as u64);
            }
        }
    }

    pub(crate) fn made(&self, count: usize) {
        self.made.inc_by(count as u64);
    }

    pub(crate) fn filled(&self, count: usize) {
        self.filled.inc_by(count as u64);
    }

    pub(crate) fn unknown(&self, count: usize) {
        self.unknown.inc_by(count as u64);
    }

    pub(crate) fn withheld(&self, why: &'static str) {
        self.withheld.get_or_create(&WhyLabels { why }).inc();
    }

    pub(crate) fn letters(&self, kind: &'static str, count: i64) {
        self.letters.get_or_create(&KindLabels { kind }).set(count);
    }

    pub(crate) fn removed(&self, what: &'static str, count: u64) {
        if count > 0 {
            self.removed.get_or_create(&WhatLabels { what }).inc_by(count);
        }
    }

    pub(crate) fn repaired(&self) {
        self.repaired.inc();
    }
}
