//! Gauges of the drops under way, read from the stores. Every process shows the same numbers: take the maximum, not the sum.

mod store;

use std::sync::atomic::AtomicI64;

use db::Db;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::error::Error;
use crate::line::Line;

/// How many drops have gauges at most: each one is a label value.
const MOST: u32 = 100;

/// Reads the gauges. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Gauges {
    db: Db,
    line: Line,
    shown: DropMetrics,
}

/// The metrics of drops under way.
#[derive(Clone, Debug)]
pub(crate) struct DropMetrics {
    waiting: Family<OfDrop, Gauge>,
    inside: Family<OfDrop, Gauge>,
    units: Family<Units, Gauge>,
    refunds_due: Gauge<i64, AtomicI64>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfDrop {
    drop: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Units {
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
            "drops_waiting",
            "Players in the line of a drop that is scheduled, open or paused",
            this.waiting.clone(),
        );
        registry.register("drops_inside", "Players with an admission in force", this.inside.clone());
        registry.register(
            "drops_units",
            "Units of a drop that is scheduled, open or paused: available, reserved, sold",
            this.units.clone(),
        );
        registry.register(
            "drops_refunds_due",
            "Orders that were paid and that an operator must refund",
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
    pub(crate) const fn new(db: Db, line: Line, shown: DropMetrics) -> Self {
        Self { db, line, shown }
    }

    /// Reads all gauges once.
    pub(crate) async fn tick(&self) -> Result<(), Error> {
        let counts = self.db.bounded(store::counts(&self.db, MOST)).await?;
        let refunds_due = self.db.bounded(store::refunds_due(&self.db)).await?;
        let mut waiting = Vec::with_capacity(counts.len());
        for of_drop in &counts {
            // From the line: counting a million rows every few seconds would cost the database more than the admissions do.
            waiting.push(self.line.len(of_drop.id).await.ok());
        }
        // Drops that are over lose their gauges.
        self.shown.clear();
        for (of_drop, waiting) in counts.into_iter().zip(waiting) {
            let store::Counts { name, available, reserved, sold, inside, .. } = of_drop;
            let drop = || OfDrop { drop: name.clone() };
            if let Some(waiting) = waiting {
                self.shown.waiting.get_or_create(&drop()).set(waiting.try_into().unwrap_or(i64::MAX));
            }
            self.shown.inside.get_or_create(&drop()).set(inside);
            for (state, count) in [("available", available), ("reserved", reserved), ("sold", sold)] {
                self.shown.units.get_or_create(&Units { drop: name.clone(), state }).set(count);
            }
        }
        self.shown.refunds_due.set(refunds_due);
        Ok(())
    }
}
