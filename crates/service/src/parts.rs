//! The parts that an open service adds to the process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::{CallerVerifier, Routes, Site};
use runtime::Process;
use runtime::lifecycle::{Drain, LoopError};

use crate::{OpenError, OpenMatchApi};

/// The parts that an open service adds to the process. Empty by default.
#[derive(Default)]
pub struct ServiceParts {
    /// Routes of the service API. Callers are authenticated; handlers check rights with [`http_server::Caller::require`].
    pub service_api: Router,
    /// Routes of the gateway's own listener. Only the gateway sets it: other services declare
    /// [player routes](crate::Service::player_routes), which the gateway serves behind its guard.
    pub gateway: Routes,
    /// The host names and origins of the gateway's listener.
    pub gateway_site: Option<Site>,
    /// Routes of the Open Match listener.
    pub open_match: Routes,
    /// Routes of the listeners that serve one service of Open Match.
    pub open_match_apis: BTreeMap<OpenMatchApi, Routes>,
    /// The origins of other pages that may send changes to it.
    pub open_match_origins: Vec<String>,
    /// Authenticates callers of the service API that are not configured. At most one service may set it.
    pub caller_verifier: Option<Arc<dyn CallerVerifier>>,
    /// Background loops, which start after all services are open.
    pub loops: Vec<Loop>,
    /// Runs after all services are open and before any loop or listener starts.
    pub after_all_open: Option<LocalBoxFuture<'static, Result<(), OpenError>>>,
}

impl fmt::Debug for ServiceParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceParts").field("loops", &self.loops).finish_non_exhaustive()
    }
}

/// A background loop. It is supervised and restarted when it fails.
pub struct Loop {
    name: &'static str,
    max_downtime: Option<Duration>,
    stops_after: Vec<&'static str>,
    stops_before: Vec<&'static str>,
    body: Box<dyn Fn(Drain) -> BoxFuture<'static, Result<(), LoopError>> + Send + Sync>,
}

impl Loop {
    /// Creates a loop that runs `body` with a clone of `state` on each start.
    pub fn new<T, Run>(
        name: &'static str,
        state: T,
        body: impl Fn(T, Drain) -> Run + Send + Sync + 'static,
    ) -> Self
    where
        T: Clone + Send + Sync + 'static,
        Run: Future<Output = Result<(), LoopError>> + Send + 'static,
    {
        Self {
            name,
            max_downtime: None,
            stops_after: Vec::new(),
            stops_before: Vec::new(),
            body: Box::new(move |drain| body(state.clone(), drain).boxed()),
        }
    }

    /// Limits the backoff before a restart to `time`.
    pub fn with_max_downtime(self, time: Duration) -> Self {
        Self { max_downtime: Some(time), ..self }
    }

    /// Keeps this loop running until the loop `other` has stopped, because it finishes the work of `other`.
    pub fn stops_after(mut self, other: &'static str) -> Self {
        self.stops_after.push(other);
        self
    }

    /// Keeps the loop `other` running until this one has stopped, because `other` finishes the work of this loop.
    pub fn stops_before(mut self, other: &'static str) -> Self {
        self.stops_before.push(other);
        self
    }

    /// Returns the name of the loop, which is unique in a process.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns all stop orders that these loops declare.
    pub fn stop_orders(loops: &[Self]) -> Vec<StopOrder> {
        let declared = |own: &Self| -> Vec<StopOrder> {
            let after = own.stops_after.iter().map(|earlier| StopOrder { earlier, later: own.name });
            let before = own.stops_before.iter().map(|later| StopOrder { earlier: own.name, later });
            after.chain(before).collect()
        };
        loops.iter().flat_map(declared).collect()
    }

    /// Starts loops in the given order.
    pub fn start_all(loops: Vec<Self>, process: &mut Process) {
        let orders = Self::stop_orders(&loops);
        for Self { name, max_downtime, body, .. } in loops {
            match max_downtime {
                Some(max) => process.supervise_within(name, max, body),
                None => process.supervise(name, body),
            }
        }
        // After all have started: a loop may name one that starts later.
        for StopOrder { earlier, later } in orders {
            process.stop_after(later, &[earlier]);
        }
    }
}

/// A pair of loops: the later one runs until the earlier one has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    pub earlier: &'static str,
    pub later: &'static str,
}

impl fmt::Debug for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loop").field(&self.name).finish()
    }
}
