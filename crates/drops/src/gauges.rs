//! Gauges of the drops that have not ended, read from the stores. Every process shows the same numbers: take the maximum, not the sum.

mod store;

use std::sync::atomic::AtomicI64;

use db::Db;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::error::Error;
use crate::line::Line;

/// How many drops have gauges at most, since each one is a label value.
const MAX_DROPS: u32 = 100;

/// Updates the gauges from the stores. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Gauges {
    db: Db,
    line: Line,
    metrics: DropMetrics,
}

/// The gauges of drops that have not ended.
#[derive(Clone, Debug)]
pub(crate) struct DropMetrics {
    waiting: Family<DropLabel, Gauge>,
    inside: Family<DropLabel, Gauge>,
    units: Family<UnitsLabel, Gauge>,
    refunds_due: Gauge<i64, AtomicI64>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DropLabel {
    drop: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct UnitsLabel {
    drop: String,
    state: &'static str,
}

impl DropMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let this = Self {
            waiting: Family::default(),
            inside: Family::default(),
            units: Family::default(),
            refunds_due: Gauge::default(),
        };
        registry.register(
            "playhouse_drops_waiting",
            "Players in the line of a drop that is scheduled, open or paused",
            this.waiting.clone(),
        );
        registry.register(
            "playhouse_drops_inside",
            "Players with an admission that has not expired",
            this.inside.clone(),
        );
        registry.register(
            "playhouse_drops_units",
            "Units of a drop that is scheduled, open or paused: available, reserved, sold",
            this.units.clone(),
        );
        registry.register(
            "playhouse_drops_refunds_due",
            "Payments that an operator must refund",
            this.refunds_due.clone(),
        );
        this
    }

    fn clear(&self) {
        self.waiting.clear();
        self.inside.clear();
        self.units.clear();
    }
}

impl Gauges {
    pub(crate) const fn new(db: Db, line: Line, metrics: DropMetrics) -> Self {
        Self { db, line, metrics }
    }

    /// Updates all gauges once.
    pub(crate) async fn tick(&self) -> Result<(), Error> {
        let counts = self.db.bounded(store::counts(&self.db, MAX_DROPS)).await?;
        let refunds_due = self.db.bounded(store::refunds_due(&self.db)).await?;
        let mut waiting = Vec::with_capacity(counts.len());
        for counts in &counts {
            // From the line: counting a million rows every few seconds would cost the database more than the admissions do.
            waiting.push(self.line.len(counts.id).await.ok());
        }
        // Drops that have ended lose their gauges.
        self.metrics.clear();
        for (counts, waiting) in counts.into_iter().zip(waiting) {
            let store::Counts { name, available, reserved, sold, inside, .. } = counts;
            let drop = || DropLabel { drop: name.clone() };
            if let Some(waiting) = waiting {
                self.metrics.waiting.get_or_create(&drop()).set(waiting.try_into().unwrap_or(i64::MAX));
            }
            self.metrics.inside.get_or_create(&drop()).set(inside);
            for (state, count) in [("available", available), ("reserved", reserved), ("sold", sold)] {
                self.metrics.units.get_or_create(&UnitsLabel { drop: name.clone(), state }).set(count);
            }
        }
        self.metrics.refunds_due.set(refunds_due);
        Ok(())
    }
}
