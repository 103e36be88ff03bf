//! What an embedder can bring: match functions, evaluators, assigners.
//!
//! Each is called with a deadline, in a task of its own. One that fails, panics or takes too long costs nobody a ticket: all that
//! it had in hand is released in the same tick.

use std::error::Error;
use std::sync::Arc;

use futures::future::BoxFuture;

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
}

/// Chooses among matches that want the same tickets.
pub trait Evaluator: Send + Sync + 'static {
    /// Returns the matches to be made. Of two that overlap, the one named first is.
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<MatchId>>;
}

/// Finds game servers for matches.
pub trait Assigner: Send + Sync + 'static {
    /// Returns where each match is played. A match that is left out is not made; its tickets go on waiting.
    fn assign<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<(MatchId, Assignment)>>;
}

/// A kind of match: who is considered, how matches are made of them, and where they are played.
#[derive(Clone)]
pub struct Profile {
    pub name: Arc<str>,
    pub pools: Vec<Arc<Pool>>,
    pub function: Arc<dyn MatchFunction>,
    pub assigner: Arc<dyn Assigner>,
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
