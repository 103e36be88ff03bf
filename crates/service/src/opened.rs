//! What an open service adds to the process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::{Routes, Site, Vouch};
use runtime::Process;
use runtime::lifecycle::{Drain, LoopError};

use crate::OpenError;

/// What an open service adds to the process. Empty by default.
#[derive(Default)]
pub struct Opened {
    /// Routes of the service API. Callers have shown a token; handlers ask with [`http_server::Caller::require`] what they may do.
    pub service_api: Router,
    /// The gateway's listener. Only the gateway itself has routes here: others declare
    /// [player routes](crate::Service::player_routes), which it serves behind its guard.
    pub gateway: Router,
    /// The names and origins of the gateway's listener.
    pub gateway_site: Option<Site>,
    /// Routes of the Open Match listener.
    pub open_match: Routes,
    /// Lets further callers use the service API. One service of the program may.
    pub vouch: Option<Arc<dyn Vouch>>,
    /// Background loops, started once all services are open.
    pub loops: Vec<Loop>,
    /// Runs once all services are open, before any loop or listener starts.
    pub when_all_are_open: Option<LocalBoxFuture<'static, Result<(), OpenError>>>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("loops", &self.loops).finish_non_exhaustive()
    }
}

/// A background loop: supervised, and started again whenever it fails.
pub struct Loop {
    name: &'static str,
    longest_downtime: Option<Duration>,
    stops_after: Vec<&'static str>,
    stops_before: Vec<&'static str>,
    body: Box<dyn Fn(Drain) -> BoxFuture<'static, Result<(), LoopError>> + Send + Sync>,
}

impl Loop {
    /// A loop that runs `body` with a clone of `state`, each time that it is started.
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
            longest_downtime: None,
            stops_after: Vec::new(),
            stops_before: Vec::new(),
            body: Box::new(move |drain| body(state.clone(), drain).boxed()),
        }
    }

    /// Starts it again within this time, however often it has failed.
    pub fn down_at_most(self, time: Duration) -> Self {
        Self { longest_downtime: Some(time), ..self }
    }

    /// Keeps it running until the loop `other` has stopped, because it works on what that one leaves.
    pub fn stops_after(mut self, other: &'static str) -> Self {
        self.stops_after.push(other);
        self
    }

    /// Keeps the loop `other` running until this one has stopped, because that one works on what this one leaves.
    pub fn stops_before(mut self, other: &'static str) -> Self {
        self.stops_before.push(other);
        self
    }

    /// The name of the loop, unique in a process.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Lists the orders in which these loops stop, as they declare them.
    pub fn stop_orders(loops: &[Self]) -> Vec<StopOrder> {
        let declared = |own: &Self| -> Vec<StopOrder> {
            let after = own.stops_after.iter().map(|earlier| StopOrder { earlier, later: own.name });
            let before = own.stops_before.iter().map(|later| StopOrder { earlier: own.name, later });
            after.chain(before).collect()
        };
        loops.iter().flat_map(declared).collect()
    }

    /// Starts loops in their order.
    pub fn start_all(loops: Vec<Self>, process: &mut Process) {
        let orders = Self::stop_orders(&loops);
        for Self { name, longest_downtime, body, .. } in loops {
            match longest_downtime {
                Some(longest) => process.supervise_within(name, longest, body),
                None => process.supervise(name, body),
            }
        }
        // Only now: a loop may name one that is started after it.
        for StopOrder { earlier, later } in orders {
            process.stop_after(later, &[earlier]);
        }
    }
}

/// Two loops, of which the later one runs until the earlier one has stopped.
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
