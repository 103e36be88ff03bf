//! The plugins of an embedder: match functions, evaluators, assigners.
//!
//! Each call has a deadline and runs in its own task. A plugin that fails, panics or takes too long costs no player a
//! ticket: its tickets are released in the same tick.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use base::error::chain;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::allocation::AbandonedMatch;
use crate::model::{Assignment, BackfillId, Match, MatchId, Moment, Pool, Proposal, Ticket, TicketId};
use crate::store::{OpenRoom, Seat};
use crate::why::RuleSetWhy;

/// The error of a plugin, for the log.
pub type PluginError = Box<dyn Error + Send + Sync>;

/// The future that a plugin returns.
pub type PluginFuture<'a, T> = BoxFuture<'a, Result<T, PluginError>>;

/// The tickets of a profile's pools at one tick.
#[derive(Clone, Debug)]
pub struct Pools {
    pub profile: Arc<str>,
    pub now: Moment,
    /// In the order of the profile's pools, with the oldest tickets first. A ticket may be in several pools.
    pub pools: Vec<(Arc<Pool>, Vec<Arc<Ticket>>)>,
}

/// Proposes matches from tickets.
pub trait MatchFunction: Send + Sync + 'static {
    /// Returns the name that its matches carry.
    fn name(&self) -> &str;

    /// Proposes matches. Proposals may overlap with those of other profiles; the evaluator decides.
    fn make_matches<'a>(&'a self, pools: &'a Pools) -> PluginFuture<'a, Vec<Proposal>>;

    /// Returns what a backfill of this match keeps, so that others may join: the seat of each ticket. `None` if the function fills no
    /// matches under way. The region is where the match is played, if that is known.
    fn seats(
        &self,
        _match_: &Match,
        _region: Option<&str>,
        _now: Moment,
    ) -> Option<BTreeMap<TicketId, Seat>> {
        None
    }

    /// Chooses tickets that join matches under way. These are sorted, the first one comes first.
    fn fill<'a>(&'a self, _rooms: &'a [OpenRoom], _pools: &'a Pools) -> PluginFuture<'a, Vec<ProposedJoin>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Returns how many tickets a match has, if that is fixed. Operators then see how many are missing.
    fn size(&self) -> Option<usize> {
        None
    }

    /// Returns whether tickets of different fetches must meet. The function is then called with all tickets that the engine
    /// holds: after the 1st, 2nd, 4th, 8th and 16th full fetch without a match, and after the last one.
    fn meets_all(&self) -> bool {
        false
    }

    /// Returns why no match can ever have this ticket, whatever the others are. `None` if one may. Players who ask for such a
    /// ticket read it.
    fn refuse(&self, _ticket: &Ticket) -> Option<String> {
        None
    }

    /// Explains why a ticket waits among others of its pool, if the function follows a rule set.
    fn why(&self, _ticket: &Ticket, _others: &[Arc<Ticket>], _now: Moment) -> Option<RuleSetWhy> {
        None
    }

    /// Returns what is wrong with the function for these waiting tickets, in sentences. Operators read them.
    fn warnings(&self, _waiting: &[Arc<Ticket>]) -> Vec<String> {
        Vec::new()
    }

    /// Explains the same in a few lines. Operators read them. Functions with a rule set need only [`why`](Self::why).
    fn explain(&self, _ticket: &Ticket, _others: &[Arc<Ticket>], _now: Moment) -> Vec<String> {
        Vec::new()
    }
}

/// Tickets that are to join a match under way, each with its seat.
#[derive(Clone, Debug, PartialEq)]
pub struct ProposedJoin {
    pub backfill: BackfillId,
    pub seats: Vec<(TicketId, Seat)>,
}

/// Chooses between matches that contain the same tickets.
pub trait Evaluator: Send + Sync + 'static {
    /// Returns the matches to make. If two of them overlap, the first one is made.
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<MatchId>>;
}

/// Finds game servers for matches. After a failure it is not called for a while, then called for one match at a time.
pub trait Assigner: Send + Sync + 'static {
    /// Returns the server of each match. A match that is left out is not made, and its tickets keep waiting.
    fn assign<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<(MatchId, Assignment)>>;

    /// Returns the allocator of this assigner, if servers must be given back when their match is not made. The engine
    /// then calls [`Allocator::allocate`] instead of [`assign`](Self::assign), and keeps a row per match until the
    /// match is made or given back. By default there is none, and an assignment needs no row.
    fn allocator(&self) -> Option<&dyn Allocator> {
        None
    }
}

/// Allocates game servers that must be given back when their match is not made.
pub trait Allocator: Send + Sync {
    /// Returns the name used in rows and give-back calls. It must not change across restarts.
    fn name(&self) -> &str;

    /// Allocates a server for each match. May be called again for the same matches after a transient failure, and must
    /// then use the same ids.
    fn allocate<'a>(
        &'a self,
        matches: &'a [Match],
    ) -> BoxFuture<'a, Result<AllocationResponse, AllocationError>>;

    /// Gives back any server allocated for a match that is not made. Called at least once, also for matches that have
    /// no server.
    fn give_back<'a>(&'a self, abandoned: &'a AbandonedMatch) -> PluginFuture<'a, ()>;
}

/// The response of an allocator. A match in neither list has no server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocationResponse {
    pub servers: Vec<(MatchId, Assignment)>,
    /// Matches that may have a server which is unusable. They are given back.
    pub unusable: Vec<MatchId>,
    /// How many items of the response were unreadable.
    pub unreadable_items: u64,
}

/// The error of an allocator.
#[derive(Debug)]
pub struct AllocationError {
    pub cause: String,
    /// Whether servers may have been allocated all the same. If so, all requested matches are given back.
    pub in_doubt: bool,
    /// Whether a retry may succeed.
    pub is_transient: bool,
}

impl AllocationError {
    /// Creates the error of a call whose outcome is unknown: servers may have been allocated.
    pub fn in_doubt(cause: &(dyn Error + 'static)) -> Self {
        Self { cause: chain(cause), in_doubt: true, is_transient: false }
    }

    /// Creates the error of a request that was never sent.
    pub fn unsent(cause: &(dyn Error + 'static)) -> Self {
        Self { cause: chain(cause), in_doubt: false, is_transient: false }
    }
}

/// A kind of match: which tickets it considers, how matches are proposed, and where they are played.
#[derive(Clone)]
pub struct Profile {
    pub name: Arc<str>,
    /// The version of its definition, which matches carry: 0 for the one of the configuration.
    pub version: i64,
    pub pools: Vec<Arc<Pool>>,
    pub function: Arc<dyn MatchFunction>,
    pub assigner: Arc<dyn Assigner>,
    /// A ticket that has waited for longer counts as starving.
    pub max_wait: Option<Duration>,
    /// How long the players of a match have to accept it, before a server is requested. `None` does not ask them.
    pub ready_check: Option<Duration>,
    /// Whether a match with room gets a backfill, which the match function fills.
    pub backfill: bool,
}

impl Profile {
    /// Returns whether any pool admits this ticket.
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
