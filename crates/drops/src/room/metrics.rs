//! The metrics of waiting rooms.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::reconcile::ReconcileReport;

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct RoomMetrics {
    joined: Counter,
    admitted: Counter,
    expired: Counter,
    repaired: Family<DifferenceLabel, Counter>,
    rebuilt: Counter,
    line_failures: Family<StepLabel, Counter>,
    wait_ended: Counter,
    failures: Family<StepLabel, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DifferenceLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

impl RoomMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self {
            joined: Counter::default(),
            admitted: Counter::default(),
            expired: Counter::default(),
            repaired: Family::default(),
            rebuilt: Counter::default(),
            line_failures: Family::default(),
            wait_ended: Counter::default(),
            failures: Family::default(),
        };
        registry.register("playhouse_drops_joins", "Players who joined a line", this.joined.clone());
        registry.register("playhouse_drops_admissions", "Players who were admitted", this.admitted.clone());
        registry.register(
            "playhouse_drops_admissions_expired",
            "Admissions that expired",
            this.expired.clone(),
        );
        registry.register(
            "playhouse_drops_line_mended",
            "Differences between the line and SQL that were repaired: missing, stale (no longer waiting), moved",
            this.repaired.clone(),
        );
        registry.register(
            "playhouse_drops_line_rebuilds",
            "Lines that were filled from SQL",
            this.rebuilt.clone(),
        );
        registry.register(
            "playhouse_drops_line_failures",
            "Operations on the line that failed: read, add, remove, clear, fill",
            this.line_failures.clone(),
        );
        registry.register(
            "playhouse_drops_waits_ended",
            "Players who still waited when their drop ended",
            this.wait_ended.clone(),
        );
        registry.register(
            "playhouse_drops_step_failures",
            "Failures of a loop on one drop, by step: cycle, end, reconcile",
            this.failures.clone(),
        );
        this
    }

    pub(super) fn joined(&self, count: i64) {
        self.joined.inc_by(count.unsigned_abs());
    }

    pub(super) fn cycled(&self, admitted: usize, expired: usize) {
        self.admitted.inc_by(admitted as u64);
        self.expired.inc_by(expired as u64);
    }

    pub(super) fn repaired(&self, reconciled: &ReconcileReport) {
        let ReconcileReport { missing, stale, moved, rebuilt } = *reconciled;
        for (kind, count) in [("missing", missing), ("stale", stale), ("moved", moved)] {
            self.repaired.get_or_create(&DifferenceLabel { kind }).inc_by(count);
        }
        self.rebuilt.inc_by(rebuilt);
    }

    pub(super) fn line_failed(&self, step: &'static str) {
        self.line_failures.get_or_create(&StepLabel { step }).inc();
    }

    pub(super) fn wait_ended(&self, count: usize) {
        self.wait_ended.inc_by(count as u64);
    }

    pub(super) fn failed(&self, step: &'static str) {
        self.failures.get_or_create(&StepLabel { step }).inc();
    }
}
