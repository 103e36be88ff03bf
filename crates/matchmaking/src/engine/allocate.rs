//! Calls to allocators. Each match gets a row before the request is sent, and a verdict afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::error::chain;
use runtime::fault;
use tokio::time::Instant;

use super::breaker::Breaker;
use super::{AllocationError, AllocationResponse, Assigner, Inner, call};
use crate::allocation::AbandonReason;
use crate::model::{Assignment, Match, MatchId};

/// The result of requesting servers.
#[derive(Debug, Default)]
pub(super) struct RequestedServers {
    pub(super) found: HashMap<MatchId, Assignment>,
    pub(super) unused: UnusedAllocations,
    /// Whether an allocator was called and its matches have rows. A sweeper may then abandon a match, and the store
    /// refuses it.
    pub(super) is_fenced: bool,
    /// Whether some matches were not requested because the assigner keeps failing.
    pub(super) is_throttled: bool,
    /// The step that failed, and the cause.
    pub(super) failure: Option<(&'static str, String)>,
}

/// Allocations that no match uses.
#[derive(Debug, Default)]
pub(super) struct UnusedAllocations {
    without_server: Vec<MatchId>,
    abandoned: Vec<(MatchId, AbandonReason)>,
}

impl UnusedAllocations {
    /// Adds a match that has a server but was refused by the store.
    pub(super) fn add_refused(&mut self, id: MatchId) {
        self.abandoned.push((id, AbandonReason::Refused));
    }
}

impl RequestedServers {
    pub(super) fn failed(step: &'static str, cause: String) -> Self {
        Self { failure: Some((step, cause)), ..Self::default() }
    }
}

impl Inner {
    /// Calls an allocator. Retries transient failures as far as the breaker allows.
    pub(super) async fn allocate(
        &self,
        assigner: Arc<dyn Assigner>,
        requested: &Arc<[Match]>,
        breaker: &Breaker,
    ) -> RequestedServers {
        let Some(allocator) = assigner.allocator() else { return RequestedServers::default() };
        let name = allocator.name().to_owned();
        if let Some(allocations) = &self.allocations {
            if let Err(error) = allocations.open(&name, requested).await {
                // Without a row an allocation would leak.
                return RequestedServers::failed("allocation", chain(&error));
            }
            fault::point("matchmaking.allocating");
        }
        let answer = self.call_allocator(&assigner, &name, requested, breaker).await;
        fault::point("matchmaking.answered");
        let is_fenced = self.allocations.is_some();
        let all = || requested.iter().map(|match_| match_.id);
        let (unused, failure) = match answer {
            Ok(AllocationResponse { servers, unusable, unreadable_items }) => {
                self.metrics.unreadable(&name, unreadable_items);
                let found: HashMap<MatchId, Assignment> = servers.into_iter().collect();
                let unusable: HashSet<MatchId> = unusable.into_iter().collect();
                let without = all().filter(|id| !found.contains_key(id) && !unusable.contains(id)).collect();
                let abandoned = unusable.into_iter().map(|id| (id, AbandonReason::Unreadable)).collect();
                let unused = UnusedAllocations { without_server: without, abandoned };
                return RequestedServers { found, unused, is_fenced, ..RequestedServers::default() };
            }
            Err(error) if !error.in_doubt => (
                UnusedAllocations { without_server: all().collect(), ..UnusedAllocations::default() },
                error.cause,
            ),
            Err(error) => (in_doubt(all()), error.cause),
        };
        RequestedServers {
            unused,
            is_fenced,
            ..RequestedServers::failed("assigner", format!("{name}: {failure}"))
        }
    }

    async fn call_allocator(
        &self,
        assigner: &Arc<dyn Assigner>,
        name: &str,
        requested: &Arc<[Match]>,
        breaker: &Breaker,
    ) -> Result<AllocationResponse, AllocationError> {
        let deadline = Instant::now() + self.config.assigner_timeout;
        let mut guarded_call = breaker.start_call();
        let mut in_doubt = false;
        loop {
            let (assigner, requested) = (assigner.clone(), requested.clone());
            let work = async move {
                match assigner.allocator() {
                    Some(allocator) => Ok(allocator.allocate(&requested).await),
                    None => Ok(Ok(AllocationResponse::default())),
                }
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            // The call timed out or panicked.
            let unanswered = |cause| Err(AllocationError { cause, in_doubt: true, is_transient: false });
            let error = match call(remaining, work).await.unwrap_or_else(unanswered) {
                Ok(allocated) => {
                    guarded_call.succeeded();
                    return Ok(allocated);
                }
                Err(error) => error,
            };
            in_doubt |= error.in_doubt;
            let wait = if error.is_transient { guarded_call.retry_delay(deadline) } else { None };
            let Some(wait) = wait else { return Err(AllocationError { in_doubt, ..error }) };
            tracing::warn!(
                assigner = name,
                cause = error.cause,
                "Cannot allocate servers; retrying for the same matches"
            );
            tokio::time::sleep(wait).await;
        }
    }

    /// Records the outcome of allocations that no match uses.
    pub(super) async fn settle_unused(&self, profile: &str, unused: UnusedAllocations) {
        let Some(allocations) = &self.allocations else { return };
        if let Err(error) = allocations.settle(&unused.without_server, &unused.abandoned).await {
            tracing::warn!(
                outage = "sql",
                profile,
                cause = chain(&error),
                "Cannot record unused servers; the sweeper gives them back later"
            );
        }
    }
}

fn in_doubt(ids: impl Iterator<Item = MatchId>) -> UnusedAllocations {
    let abandoned = ids.map(|id| (id, AbandonReason::Unanswered)).collect();
    UnusedAllocations { abandoned, ..UnusedAllocations::default() }
}
