//! Asking allocators: with a row per match before the request leaves, and a judgement of every match afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::error::chain;
use runtime::fault;
use tokio::time::Instant;

use super::breaker::Breaker;
use super::{Allocated, Assigner, Inner, NotAllocated, call};
use crate::allocation::Reason;
use crate::model::{Assignment, Match, MatchId};

/// What came of asking for servers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) found: HashMap<MatchId, Assignment>,
    pub(super) unused: Unused,
    /// Whether an allocator was asked and its matches have rows: a sweeper may give them up, and then the store refuses them.
    pub(super) is_fenced: bool,
    /// Whether the assigner fails and was not asked for all matches.
    pub(super) is_spared: bool,
    /// What failed, and why.
    pub(super) failure: Option<(&'static str, String)>,
}

/// Allocations that no match uses.
#[derive(Debug, Default)]
pub(super) struct Unused {
    without_server: Vec<MatchId>,
    abandoned: Vec<(MatchId, Reason)>,
}

impl Unused {
    /// Notes that the store refused a match that has a server.
    pub(super) fn refused(&mut self, id: MatchId) {
        self.abandoned.push((id, Reason::Refused));
    }
}

impl Servers {
    pub(super) fn failed(step: &'static str, cause: String) -> Self {
        Self { failure: Some((step, cause)), ..Self::default() }
    }
}

impl Inner {
    /// Asks an allocator. A question that fails for a passing reason is asked again, as the breaker allows it.
    pub(super) async fn allocate(
        &self,
        assigner: Arc<dyn Assigner>,
        asked: &Arc<[Match]>,
        breaker: &Breaker,
    ) -> Servers {
        let Some(allocator) = assigner.allocator() else { return Servers::default() };
        let name = allocator.name().to_owned();
        if let Some(allocations) = &self.allocations {
            if let Err(error) = allocations.open(&name, asked).await {
                // An allocation that nobody remembers is a leak.
                return Servers::failed("allocation", chain(&error));
            }
            fault::point("matchmaking.allocating");
        }
        let answer = self.ask(&assigner, &name, asked, breaker).await;
        fault::point("matchmaking.answered");
        let is_fenced = self.allocations.is_some();
        let all = || asked.iter().map(|made| made.id);
        let (unused, failure) = match answer {
            Ok(Allocated { servers, lost, unreadable }) => {
                self.metrics.unreadable(&name, unreadable);
                let found: HashMap<MatchId, Assignment> = servers.into_iter().collect();
                let lost: HashSet<MatchId> = lost.into_iter().collect();
                let without = all().filter(|id| !found.contains_key(id) && !lost.contains(id)).collect();
                let abandoned = lost.into_iter().map(|id| (id, Reason::Unreadable)).collect();
                let unused = Unused { without_server: without, abandoned };
                return Servers { found, unused, is_fenced, ..Servers::default() };
            }
            Err(error) if !error.in_doubt => {
                (Unused { without_server: all().collect(), ..Unused::default() }, error.cause)
            }
            Err(error) => (in_doubt(all()), error.cause),
        };
        Servers { unused, is_fenced, ..Servers::failed("assigner", format!("{name}: {failure}")) }
    }

    async fn ask(
        &self,
        assigner: &Arc<dyn Assigner>,
        name: &str,
        asked: &Arc<[Match]>,
        breaker: &Breaker,
    ) -> Result<Allocated, NotAllocated> {
        let deadline = Instant::now() + self.config.assigner_timeout;
        let mut trial = breaker.begin();
        let mut in_doubt = false;
        loop {
            let (assigner, asked) = (assigner.clone(), asked.clone());
            let work = async move {
                match assigner.allocator() {
                    Some(allocator) => Ok(allocator.allocate(&asked).await),
                    None => Ok(Ok(Allocated::default())),
                }
            };
            let left = deadline.saturating_duration_since(Instant::now());
            // It took too long or panicked.
            let unanswered = |cause| Err(NotAllocated { cause, in_doubt: true, is_passing: false });
            let error = match call(left, work).await.unwrap_or_else(unanswered) {
                Ok(allocated) => {
                    trial.succeeded();
                    return Ok(allocated);
                }
                Err(error) => error,
            };
            in_doubt |= error.in_doubt;
            let wait = if error.is_passing { trial.repeat_after(deadline) } else { None };
            let Some(wait) = wait else { return Err(NotAllocated { in_doubt, ..error }) };
            tracing::warn!(assigner = name, cause = error.cause, "asking again for the same matches");
            tokio::time::sleep(wait).await;
        }
    }

    /// Writes down what became of allocations that no match uses.
    pub(super) async fn give_up(&self, profile: &str, unused: Unused) {
        let Some(allocations) = &self.allocations else { return };
        if let Err(error) = allocations.settle(&unused.without_server, &unused.abandoned).await {
            tracing::warn!(
                outage = "sql",
                profile,
                cause = chain(&error),
                "servers that are not used are given back later"
            );
        }
    }
}

fn in_doubt(ids: impl Iterator<Item = MatchId>) -> Unused {
    let abandoned = ids.map(|id| (id, Reason::Unanswered)).collect();
    Unused { abandoned, ..Unused::default() }
}
