//! Finds matches: the oldest ticket is the pivot, and a match is built around it.

mod balance;
mod index;
mod joining;
mod search;
mod sort;

use std::sync::Arc;
use std::time::Duration;

use self::index::Index;
pub use self::joining::{Join, Seated};
use self::search::{Found, Reach, Search};
use crate::judge::{Judge, Lineup};
use crate::model::RuleSet;
use crate::roles;
use crate::ticket::{Candidate, Refusal, Regions, Ticket, hash};

/// How many pivots that have waited too long may be compared with the whole pool in one pass.
const MAX_WIDE: usize = 16;
/// After so many comparisons of that kind, only the pivot whose turn it is has one in this pass.
const WIDE_BUDGET: usize = 50_000;

/// How much a pass may do. The same pool, rule set, time and options give the same matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Chooses between candidates that are equally good.
    pub seed: u64,
    /// How many candidates are considered for a pivot. 0: 64, and four for each player of a match.
    pub candidates: usize,
    /// How many lineups are tried for a pivot, after the first attempt failed.
    pub pivot_budget: u32,
    /// How many of them in one pass. Afterwards each pivot has only its first attempt.
    pub pass_budget: u32,
    /// A pivot that has waited for longer, and finds no match among the nearest candidates, is compared with all of them.
    pub patience: Duration,
    /// The number of the pass. Decides which pivots are compared with all candidates if there are many of them.
    pub turn: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            candidates: 0,
            pivot_budget: 2_000,
            pass_budget: 400_000,
            patience: Duration::from_secs(30),
            turn: 0,
        }
    }
}

impl Options {
    /// Tries every lineup. For small pools only.
    pub const EXHAUSTIVE: Self = Self {
        seed: 0,
        candidates: usize::MAX,
        pivot_budget: u32::MAX,
        pass_budget: u32::MAX,
        patience: Duration::MAX,
        turn: 0,
    };
}

/// What a pass found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// In the order of their oldest tickets.
    pub matches: Vec<Match>,
    /// Tickets that can never match under the rule set, with any other tickets.
    pub refused: Vec<Refusal>,
    /// How often each rule was passed and failed, in the order of the rules.
    pub evaluations: Vec<Evaluations>,
    /// How many searches ended because of the budget.
    pub cut_short: usize,
}

/// How often a rule was evaluated, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluations {
    pub passed: u64,
    pub failed: u64,
}

/// Tickets that play together. Tickets are indexes into the given ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    pub oldest: usize,
    pub teams: Vec<TeamLineup>,
    /// The regions that the latency rules admit, with the average latency, the best first.
    pub regions: Vec<(Arc<str>, f64)>,
    pub quality: f64,
}

impl Match {
    /// Returns all tickets, team by team.
    pub fn tickets(&self) -> impl Iterator<Item = usize> {
        self.teams.iter().flat_map(|team| &team.tickets).copied()
    }

    /// Returns how many more players the match has room for.
    pub fn open(&self) -> usize {
        self.teams.iter().map(|team| team.open).sum()
    }
}

/// One team of a match.
#[derive(Clone, Debug, PartialEq)]
pub struct TeamLineup {
    pub name: Arc<str>,
    pub tickets: Vec<usize>,
    /// The role of each player, in the order of the tickets and their players. Empty if the team has no roles.
    pub roles: Vec<Arc<str>>,
    /// How many more players it has room for.
    pub open: usize,
}

impl RuleSet {
    /// Finds matches among tickets. Time is in milliseconds, as in the tickets.
    pub fn find_matches(&self, tickets: &[Ticket], now: i64, options: Options) -> Pass {
        let pool = Pool::new(self, tickets, options.seed);
        let mut pass =
            Pass { evaluations: vec![Evaluations::default(); self.rules.len()], ..Pass::default() };
        let judge = pool.judge(self, now);
        let mut matcher = Matcher::new(judge, options);
        for pivot in 0..pool.candidates.len() {
            if matcher.is_taken(pivot) {
                continue;
            }
            if let Some(lineup) = matcher.find(pivot, &mut pass) {
                pass.matches.push(pool.describe(&judge, pivot, &lineup));
            }
        }
        pass.refused = pool.refused;
        pass
    }
}

/// The tickets that the rule set can match, the oldest first.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) candidates: Vec<Candidate>,
    /// The index of each candidate in the given tickets.
    pub(crate) origins: Vec<usize>,
    regions: Regions,
    pub(crate) refused: Vec<Refusal>,
}

impl Pool {
    pub(crate) fn new(rules: &RuleSet, tickets: &[Ticket], seed: u64) -> Self {
        let regions = Regions::of(tickets);
        // Sorting places is cheaper than sorting candidates.
        let mut order: Vec<(i64, usize)> =
            tickets.iter().map(|ticket| ticket.created).zip(0..tickets.len()).collect();
        order.sort_unstable_by(|(one, first), (two, second)| {
            one.cmp(two).then_with(|| tickets[*first].id.cmp(&tickets[*second].id)).then(first.cmp(second))
        });
        let mut candidates = Vec::with_capacity(tickets.len());
        let (mut origins, mut refused) = (Vec::with_capacity(tickets.len()), Vec::new());
        for (_, origin) in order {
            match tickets[origin].prepare(rules, &regions, seed) {
                Ok(candidate) => {
                    candidates.push(candidate);
                    origins.push(origin);
                }
                Err(refusal) => refused.push((origin, refusal)),
            }
        }
        refused.sort_unstable_by_key(|(origin, _)| *origin);
        let refused = refused.into_iter().map(|(_, refusal)| refusal).collect();
        mark_shared_players(&mut candidates);
        Self { candidates, origins, regions, refused }
    }

    pub(crate) fn judge<'a>(&'a self, rules: &'a RuleSet, now: i64) -> Judge<'a> {
        Judge { rules, pool: &self.candidates, regions: self.regions.names(), now }
    }

    fn describe(&self, judge: &Judge<'_>, pivot: usize, lineup: &Lineup) -> Match {
        let teams = judge.rules.slots.iter().zip(lineup).map(|(slot, tickets)| {
            let team = &judge.rules.teams[slot.team];
            let players = judge.members(tickets);
            let roles =
                roles::assign(&team.roles, judge.rules.role_attribute, &players, 0).unwrap_or_default();
            TeamLineup {
                name: slot.name.clone(),
                tickets: tickets.iter().map(|ticket| self.origins[*ticket]).collect(),
                roles: roles.iter().map(|role| team.roles[*role].name.clone()).collect(),
                open: team.max.saturating_sub(players.len()),
            }
        });
        Match {
            oldest: self.origins[pivot],
            teams: teams.collect(),
            regions: judge.admitted_regions(lineup),
            quality: judge.quality(lineup),
        }
    }
}

/// Marks the tickets with a player who may be in another ticket too: with equal hashes of the ids.
fn mark_shared_players(candidates: &mut [Candidate]) {
    let mut players: Vec<(u64, usize)> = Vec::with_capacity(candidates.len());
    for (at, candidate) in candidates.iter().enumerate() {
        players.extend(candidate.players.iter().map(|player| (hash(0, &player.id), at)));
    }
    players.sort_unstable();
    for same in players.chunk_by(|one, two| one.0 == two.0).filter(|same| same.len() > 1) {
        same.iter().for_each(|(_, at)| candidates[*at].shares_player = true);
    }
}

/// The state of one pass.
#[derive(Debug)]
pub(crate) struct Matcher<'a> {
    judge: Judge<'a>,
    options: Options,
    index: Index,
    budget: u32,
    wide: WideSearches,
}

/// Which pivots may still be compared with the whole pool in this pass.
#[derive(Debug)]
struct WideSearches {
    /// How many pivots have waited too long. They come first in the pool.
    overdue: usize,
    /// The one whose turn it is; the next ones follow while there is budget.
    first: usize,
    searches_left: usize,
    budget: usize,
}

impl WideSearches {
    fn new(judge: &Judge<'_>, options: &Options) -> Self {
        let patience = i64::try_from(options.patience.as_millis()).unwrap_or(i64::MAX);
        let since = judge.now.saturating_sub(patience);
        let overdue = judge.pool.partition_point(|candidate| candidate.created < since);
        let first = usize::try_from(options.turn % overdue.max(1) as u64).unwrap_or_default();
        Self { overdue, first, searches_left: MAX_WIDE, budget: WIDE_BUDGET }
    }

    fn admits(&self, pivot: usize) -> bool {
        if pivot >= self.overdue {
            return false;
        }
        let place = (pivot + self.overdue - self.first) % self.overdue;
        place == 0 || place < MAX_WIDE && self.searches_left > 0 && self.budget > 0
    }

    fn spend(&mut self, compared: usize) {
        self.searches_left = self.searches_left.saturating_sub(1);
        self.budget = self.budget.saturating_sub(compared);
    }
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(judge: Judge<'a>, options: Options) -> Self {
        let index = Index::new(judge.rules, judge.pool);
        let wide = WideSearches::new(&judge, &options);
        Self { judge, options, index, budget: options.pass_budget, wide }
    }

    pub(crate) fn is_taken(&self, ticket: usize) -> bool {
        self.index.is_taken(ticket)
    }

    /// Builds a match around a ticket that is not older than any free one. Takes its tickets out of the pool. A pivot without a
    /// match is taken out too: a younger pivot could not match it either, because relaxations follow the oldest ticket.
    ///
    /// The nearest candidates may all fail a rule that the index does not know, pass after pass. So a pivot that has waited
    /// for longer than [`Options::patience`] is then compared with all of them.
    pub(crate) fn find(&mut self, pivot: usize, pass: &mut Pass) -> Option<Lineup> {
        let budget = self.options.pivot_budget.min(self.budget);
        let mut search = Search::new(self.judge, pivot, budget, &mut pass.evaluations);
        let count = match self.options.candidates {
            0 => 64 + 4 * self.judge.rules.max_players(),
            count => count,
        };
        let mut found = search.run(&mut self.index, count, Reach::Nearest);
        self.budget = self.budget.saturating_sub(budget - search.budget_left());
        let was_complete = matches!(found, Found::Nothing) && self.judge.pool.len() <= count;
        if !matches!(found, Found::Match(_)) && !was_complete && self.wide.admits(pivot) {
            let budget = self.options.pivot_budget;
            let mut search = Search::new(self.judge, pivot, budget, &mut pass.evaluations);
            found = search.run(&mut self.index, count, Reach::All { turn: self.options.turn });
            self.wide.spend(search.compared());
        }
        self.index.take(pivot);
        match found {
            Found::Match(lineup) => {
                lineup.iter().flatten().for_each(|ticket| self.index.take(*ticket));
                Some(lineup)
            }
            Found::Nothing => None,
            Found::CutShort => {
                pass.cut_short += 1;
                None
            }
        }
    }
}
