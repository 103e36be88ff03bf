//! Which part is ready, and if not, why.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::{LifecycleMetrics, PartLabels};

/// All parts that must be ready before the process is. Clones are the same list. The default is one of no process, with
/// metrics that nobody reads.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    parts: Arc<Mutex<BTreeMap<String, PartState>>>,
    metrics: LifecycleMetrics,
}

/// Ready, or the reason why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartState {
    Ready,
    NotReady(String),
}

/// The handle by which a part reports.
#[derive(Clone, Debug)]
pub struct Part {
    name: String,
    readiness: Readiness,
}

/// What readiness says at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report(pub BTreeMap<String, PartState>);

impl Readiness {
    pub(crate) fn new(metrics: LifecycleMetrics) -> Self {
        Self { parts: Arc::default(), metrics }
    }

    /// Adds a part, which is not ready until it says so.
    pub fn part(&self, name: &str) -> Part {
        let part = Part { name: name.to_owned(), readiness: self.clone() };
        part.not_ready("starting");
        part
    }

    pub fn report(&self) -> Report {
        Report(self.lock().clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, PartState>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    pub fn ready(&self) {
        self.tell(PartState::Ready);
    }

    pub fn not_ready(&self, reason: impl fmt::Display) {
        self.tell(PartState::NotReady(reason.to_string()));
    }

    /// Sets the state and returns the one before.
    pub(super) fn set(&self, state: PartState) -> Option<PartState> {
        let labels = PartLabels { part: self.name.clone() };
        self.readiness.metrics.ready.get_or_create(&labels).set(i64::from(state == PartState::Ready));
        self.readiness.lock().insert(self.name.clone(), state)
    }

    /// Sets the state and logs it, once per change and not once per check.
    fn tell(&self, state: PartState) {
        match (self.set(state.clone()), state) {
            (Some(PartState::NotReady(_)), PartState::Ready) => tracing::info!(part = self.name, "ready"),
            (Some(PartState::Ready), PartState::NotReady(reason)) => {
                tracing::warn!(part = self.name, reason, "not ready any more");
            }
            _ => {}
        }
    }
}

impl Report {
    pub fn is_ready(&self) -> bool {
        self.0.values().all(|state| *state == PartState::Ready)
    }
}
