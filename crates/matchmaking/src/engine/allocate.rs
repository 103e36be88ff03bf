//! Asking allocators: with a row per match before the request leaves, and a judgement of every match afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::error::chain;
use runtime::fault;

use super::{Allocated, Assigner, Inner, call};
use crate::allocation::Reason;
use crate::model::{Assignment, Match, MatchId};

/// What came of asking for servers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) found: HashMap<MatchId, Assignment>,
    pub(super) unused: Unused,
    /// Whether an allocator was asked and its matches have rows: a sweeper may give them up, and then the store refuses them.
    pub(super) is_fenced: bool,
    /// Whether the allocator asked to be spared.
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
    /// Asks an allocator for as many matches as it can take.
    pub(super) async fn allocate(&self, assigner: Arc<dyn Assigner>, matches: &Arc<[Match]>) -> Servers {
        let Some(allocator) = assigner.allocator() else { return Servers::default() };
        let (name, limit) = (allocator.name().to_owned(), allocator.limit());
        let asked: Arc<[Match]> =
            if limit >= matches.len() { matches.clone() } else { matches[..limit].into() };
        let is_spared = asked.len() < matches.len();
        if asked.is_empty() {
            return Servers { is_spared, ..Servers::default() };
        }
        if let Some(allocations) = &self.allocations {
            if let Err(error) = allocations.open(&name, &asked).await {
                // An allocation that nobody remembers is a leak.
                return Servers::failed("allocation", chain(&error));
            }
            fault::point("matchmaking.allocating");
        }
        let given = asked.clone();
        let work = async move {
            match assigner.allocator() {
                Some(allocator) => Ok(allocator.allocate(&given).await),
                None => Ok(Ok(Allocated::default())),
            }
        };
        let answer = call(self.config.assigner_timeout, work).await;
        fault::point("matchmaking.answered");
        let is_fenced = self.allocations.is_some();
        let all = || asked.iter().map(|made| made.id);
        let (unused, failure) = match answer {
            Ok(Ok(Allocated { servers, lost, unreadable })) => {
                self.metrics.unreadable(&name, unreadable);
                let found: HashMap<MatchId, Assignment> = servers.into_iter().collect();
                let lost: HashSet<MatchId> = lost.into_iter().collect();
                let without = all().filter(|id| !found.contains_key(id) && !lost.contains(id)).collect();
                let abandoned = lost.into_iter().map(|id| (id, Reason::Unreadable)).collect();
                let unused = Unused { without_server: without, abandoned };
                return Servers { found, unused, is_fenced, is_spared, failure: None };
            }
            Ok(Err(error)) if !error.in_doubt => {
                (Unused { without_server: all().collect(), ..Unused::default() }, error.cause)
            }
            Ok(Err(error)) => (in_doubt(all()), error.cause),
            // It took too long or panicked.
            Err(cause) => (in_doubt(all()), cause),
        };
        Servers { unused, is_fenced, is_spared, ..Servers::failed("assigner", failure) }
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
