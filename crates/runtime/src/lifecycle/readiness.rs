//! Which parts are ready, why others are not, and what that means for the roles of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::{LifecycleMetrics, PartLabels, RoleLabels, RolePartLabels};

/// The state of all parts and roles of the process. Cheap to clone; clones share state. The default belongs to no process, and its
/// metrics are not exported.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
    metrics: LifecycleMetrics,
}

#[derive(Debug, Default)]
struct State {
    parts: BTreeMap<String, PartState>,
    roles: Vec<RoleNeeds>,
}

/// Ready, or the reason why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartState {
    Ready,
    NotReady(String),
}

/// The impact of an unreachable part on a role, in increasing severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    Unaffected,
    /// The role does its essential work. Something is missing or late.
    Degraded,
    /// The role cannot do its essential work.
    NotReady,
}

/// A role of the process and how it depends on each part.
#[derive(Clone, Debug)]
pub struct RoleNeeds {
    pub role: &'static str,
    /// Whether clients connect to this role, so that a load balancer needs its readiness.
    pub takes_requests: bool,
    /// One item for each part that any role depends on, including those that this role does not need.
    pub needs: Vec<PartNeed>,
}

/// How a role depends on a part.
#[derive(Clone, Debug)]
pub struct PartNeed {
    pub part: &'static str,
    pub impact: Impact,
    /// What is missing while the part is unreachable, and what still works.
    pub effect: String,
}

/// The handle with which a part reports its state.
#[derive(Clone, Debug)]
pub struct Part {
    name: String,
    readiness: Readiness,
}

/// The state of all parts and roles at one moment.
#[derive(Clone, Debug)]
pub struct Report {
    pub parts: BTreeMap<String, PartState>,
    pub roles: Vec<RoleReport>,
    /// Parts that no role declares. Without them the process is not ready.
    required: BTreeSet<String>,
}

/// The state of a role at one moment.
#[derive(Clone, Debug)]
pub struct RoleReport {
    pub role: &'static str,
    pub takes_requests: bool,
    /// The unreachable parts that the role depends on.
    pub lacks: Vec<PartNeed>,
}

impl Readiness {
    pub(crate) fn new(metrics: LifecycleMetrics) -> Self {
        Self { state: Arc::default(), metrics }
    }

    /// Sets the roles of the process. From now on the roles decide about the parts that they declare. All other parts are required.
    pub fn declare(&self, roles: Vec<RoleNeeds>) {
        let mut state = self.lock();
        state.roles = roles;
        self.update_metrics(&state);
    }

    /// Adds a part. It is not ready until it reports so.
    pub fn part(&self, name: &str) -> Part {
        let part = Part { name: name.to_owned(), readiness: self.clone() };
        part.not_ready("starting");
        part
    }

    pub fn report(&self) -> Report {
        self.lock().report()
    }

    /// Sets the state of a part. Returns the previous state and the new report.
    fn set(&self, part: &str, to: PartState) -> (Option<PartState>, Report) {
        let labels = PartLabels { part: part.to_owned() };
        self.metrics.ready.get_or_create(&labels).set(i64::from(to == PartState::Ready));
        let mut state = self.lock();
        let before = state.parts.insert(part.to_owned(), to);
        self.update_metrics(&state);
        (before, state.report())
    }

    fn update_metrics(&self, state: &State) {
        for RoleNeeds { role, needs, .. } in &state.roles {
            for PartNeed { part, .. } in needs.iter().filter(|need| need.impact > Impact::Unaffected) {
                let degraded = self.metrics.role_degraded.get_or_create(&RolePartLabels { role, part });
                degraded.set(i64::from(state.is_down(part)));
            }
        }
        for role in state.report().roles {
            let ready = self.metrics.role_ready.get_or_create(&RoleLabels { role: role.role });
            ready.set(i64::from(role.is_ready()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_down(&self, part: &str) -> bool {
        matches!(self.parts.get(part), Some(PartState::NotReady(_)))
    }

    fn report(&self) -> Report {
        let is_declared =
            |part: &str| self.roles.iter().flat_map(|role| &role.needs).any(|need| need.part == part);
        let required = self.parts.keys().filter(|part| !is_declared(part)).cloned().collect();
        let lacks = |role: &RoleNeeds| {
            let needed = role.needs.iter().filter(|need| need.impact > Impact::Unaffected);
            needed.filter(|need| self.is_down(need.part)).cloned().collect()
        };
        let roles = self.roles.iter().map(|role| RoleReport {
            role: role.role,
            takes_requests: role.takes_requests,
            lacks: lacks(role),
        });
        Report { parts: self.parts.clone(), roles: roles.collect(), required }
    }
}

impl Part {
    pub fn ready(&self) {
        self.report(PartState::Ready);
    }

    pub fn not_ready(&self, reason: impl fmt::Display) {
        self.report(PartState::NotReady(reason.to_string()));
    }

    /// Sets the state without a log line.
    pub(super) fn set(&self, state: PartState) {
        self.readiness.set(&self.name, state);
    }

    /// Sets the state and logs changes only, not every check.
    fn report(&self, state: PartState) {
        let (before, report) = self.readiness.set(&self.name, state.clone());
        let process_ready = report.is_ready();
        match (before, state) {
            (Some(PartState::NotReady(_)), PartState::Ready) => {
                tracing::info!(part = self.name, process_ready, "ready");
            }
            (Some(PartState::Ready), PartState::NotReady(reason)) => {
                tracing::warn!(part = self.name, reason, process_ready, "no longer ready");
            }
            _ => {}
        }
    }
}

impl Report {
    /// Returns whether to send work here. Load balancers care about roles that take requests, so only those decide if there are any: a
    /// relay that waits for NATS is no reason to take players away from the gateway in the same process.
    pub fn is_ready(&self) -> bool {
        let takes_requests = self.roles.iter().any(|role| role.takes_requests);
        let mut deciding = self.roles.iter().filter(|role| role.takes_requests == takes_requests);
        self.required.iter().all(|part| self.parts.get(part) == Some(&PartState::Ready))
            && deciding.all(RoleReport::is_ready)
    }

    /// Returns whether any role is degraded.
    pub fn is_degraded(&self) -> bool {
        self.roles.iter().any(|role| !role.lacks.is_empty())
    }
}

impl RoleReport {
    /// Returns whether the role can do its essential work.
    pub fn is_ready(&self) -> bool {
        self.lacks.iter().all(|need| need.impact < Impact::NotReady)
    }
}
