//! What an embedder can bring: match functions, evaluators, assigners.
//!
//! Each is called with a deadline, in a task of its own. One that fails, panics or takes too long costs nobody a ticket: all that
//! it had in hand is released in the same tick.

use std::error::Error;
use std::sync::Arc;

use base::error::chain;
use futures::future::BoxFuture;

use crate::allocation::AbandonedMatch;
use crate::model::{Assignment, Match, MatchId, Moment, Pool, Proposal, Ticket};

/// What went wrong in a plugin, for the log.
pub type PluginError = Box<dyn Error + Send + Sync>;

/// What a plugin will have answered.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, PluginError>>;

/// The tickets of a profile's pools at one tick.
#[derive(Clone, Debug)]
pub struct Pools {
    pub profile: Arc<str>,
    pub now: Moment,
    /// In the order of the profile's pools, tickets oldest first. A ticket may be in several.
    pub pools: Vec<(Arc<Pool>, Vec<Arc<Ticket>>)>,
}

/// Makes matches of tickets.
pub trait MatchFunction: Send + Sync + 'static {
    /// Its name, in the matches it makes.
    fn name(&self) -> &str;

    /// Proposes matches. Proposals may overlap with those of other profiles; the evaluator decides.
    fn make_matches<'a>(&'a self, pools: &'a Pools) -> Answer<'a, Vec<Proposal>>;

    /// How many tickets a match takes, if that is always the same. Operators see how many are missing.
    fn size(&self) -> Option<usize> {
        None
    }
}

/// Chooses among matches that want the same tickets.
pub trait Evaluator: Send + Sync + 'static {
    /// Returns the matches to be made. Of two that overlap, the one named first is.
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<MatchId>>;
}

/// Finds game servers for matches. One that fails is left alone for a while, then called for one match at a time.
pub trait Assigner: Send + Sync + 'static {
    /// Returns where each match is played. A match that is left out is not made; its tickets go on waiting.
    fn assign<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<(MatchId, Assignment)>>;

    /// Returns the allocator behind this assigner, if its servers must be given back when their match is not made. The engine
    /// then calls [`Allocator::allocate`] instead of [`assign`](Self::assign), and keeps a row per match until the match is
    /// made or given back. By default there is none, and an assignment costs no row.
    fn allocator(&self) -> Option<&dyn Allocator> {
        None
    }
}

/// Allocates game servers that must be given back when their match is not made.
pub trait Allocator: Send + Sync {
    /// Names the allocator in rows and give-back calls. It must stay the same over restarts.
    fn name(&self) -> &str;

    /// Allocates a server for each match. It may be called again for the same matches after a failure that passes: then it must ask for
    /// them under the same ids.
    fn allocate<'a>(&'a self, matches: &'a [Match]) -> BoxFuture<'a, Result<Allocated, NotAllocated>>;

    /// Gives back whatever was allocated for a match that is not made. It is called at least once, also for matches for which
    /// nothing was allocated.
    fn give_back<'a>(&'a self, abandoned: &'a AbandonedMatch) -> Answer<'a, ()>;
}

/// An allocator's answer. A match that is in neither list has no server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocated {
    pub servers: Vec<(MatchId, Assignment)>,
    /// Matches for which a server may have been allocated that nobody can use. They are given back.
    pub lost: Vec<MatchId>,
    /// How many items of the answer could not be read.
    pub unreadable: u64,
}

/// An allocator did not answer.
#[derive(Debug)]
pub struct NotAllocated {
    pub cause: String,
    /// Whether servers may have been allocated all the same. If so, all matches that were asked for are given back.
    pub in_doubt: bool,
    /// Whether the same question may succeed a moment later.
    pub is_passing: bool,
}

impl NotAllocated {
    /// The answer is unknown: servers may have been allocated.
    pub fn in_doubt(cause: &(dyn Error + 'static)) -> Self {
        Self { cause: chain(cause), in_doubt: true, is_passing: false }
    }

    /// The question was never sent.
    pub fn unsent(cause: &(dyn Error + 'static)) -> Self {
        Self { cause: chain(cause), in_doubt: false, is_passing: false }
    }
}

/// A kind of match: who is considered, how matches are made of them, and where they are played.
#[derive(Clone)]
pub struct Profile {
    pub name: Arc<str>,
    pub pools: Vec<Arc<Pool>>,
    pub function: Arc<dyn MatchFunction>,
    pub assigner: Arc<dyn Assigner>,
}

impl Profile {
    /// Whether any pool takes this ticket.
    pub fn admits(&self, ticket: &Ticket, now: Moment) -> bool {
        self.pools.iter().any(|pool| pool.admits(ticket, now))
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let function = self.function.name();
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("function", &function)
            .finish_non_exhaustive()
    }
}
