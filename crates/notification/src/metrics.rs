//! The metrics of notifications.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::intake::IntakeReport;

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Metrics {
    events: Family<OutcomeLabels, Counter>,
    created: Counter,
    recovered: Counter,
    unknown_users: Counter,
    withheld: Family<WhyLabels, Counter>,
    dead_letters: Family<KindLabels, Gauge>,
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
            created: Counter::default(),
            recovered: Counter::default(),
            unknown_users: Counter::default(),
            withheld: Family::default(),
            dead_letters: Family::default(),
            removed: Family::default(),
            repaired: Counter::default(),
        };
        registry.register(
            "playhouse_notification_events",
            "Events that the bus delivered: taken (in inboxes now, or without recipients), repeated (duplicates), dead (dead letters)",
            metrics.events.clone(),
        );
        registry.register(
            "playhouse_notification_made",
            "Notifications that were added to an inbox",
            metrics.created.clone(),
        );
        registry.register(
            "playhouse_notification_filled",
            "Events that were read from the stream because the process that fetched them did not take them in within a second",
            metrics.recovered.clone(),
        );
        registry.register(
            "playhouse_notification_unknown_users",
            "Users named in events who do not exist or are erased",
            metrics.unknown_users.clone(),
        );
        registry.register(
            "playhouse_notification_withheld",
            "Deliveries that were skipped because the notification had expired or the user was erased",
            metrics.withheld.clone(),
        );
        registry.register(
            "playhouse_notification_dead_letters",
            "Dead letters that wait for an operator, by kind: event, live, log, webhook, broadcast",
            metrics.dead_letters.clone(),
        );
        registry.register(
            "playhouse_notification_removed",
            "Rows that were removed after their retention: notification, event (the id of an event), letter (a dead letter)",
            metrics.removed.clone(),
        );
        registry.register(
            "playhouse_notification_streams_repaired",
            "Streams that were behind their inbox and received a gap",
            metrics.repaired.clone(),
        );
        metrics
    }

    pub(crate) fn events(&self, report: &IntakeReport) {
        let IntakeReport { events, duplicates, dead_letters, .. } = *report;
        let others = events.saturating_sub(duplicates + dead_letters);
        for (outcome, count) in [("taken", others), ("repeated", duplicates), ("dead", dead_letters)] {
            if count > 0 {
                self.events.get_or_create(&OutcomeLabels { outcome }).inc_by(count as u64);
            }
        }
    }

    pub(crate) fn created(&self, count: usize) {
        self.created.inc_by(count as u64);
    }

    pub(crate) fn recovered(&self, count: usize) {
        self.recovered.inc_by(count as u64);
    }

    pub(crate) fn unknown_users(&self, count: usize) {
        self.unknown_users.inc_by(count as u64);
    }

    pub(crate) fn withheld(&self, why: &'static str) {
        self.withheld.get_or_create(&WhyLabels { why }).inc();
    }

    pub(crate) fn dead_letters(&self, kind: &'static str, count: i64) {
        self.dead_letters.get_or_create(&KindLabels { kind }).set(count);
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
