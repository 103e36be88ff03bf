//! Fills matches under way: the oldest waiting ticket that fits a match joins it.

use std::sync::Arc;

use super::search::Search;
use super::{Match, Options, Pool};
use crate::judge::{Judge, Lineup};
use crate::model::RuleSet;
use crate::ticket::Ticket;

/// How many pairs of a match and a waiting ticket one pass compares. With more pairs, each pass begins with another match.
const MAX_COMPARED: usize = 100_000;
/// How many other tickets are considered for a ticket that does not fit alone.
const MAX_OTHERS: usize = 64;

/// A ticket that is in a team of a match under way: an index into the given tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    pub team: Arc<str>,
    pub ticket: usize,
}

/// The tickets that join a match under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// The index of the match.
    pub under_way: usize,
    /// The whole lineup, with the tickets that were there before.
    pub lineup: Match,
}

impl RuleSet {
    /// Finds tickets that join matches under way, the first match first. Tickets without a seat wait. Skips a match with a team that
    /// the rule set does not have, or with a player whose attributes it refuses.
    pub fn find_joins(
        &self,
        under_way: &[Vec<Seated>],
        tickets: &[Ticket],
        now: i64,
        options: Options,
    ) -> Vec<Join> {
        let pool = Pool::new(self, tickets, options.seed);
        let mut joining = Joining::new(&pool, under_way, tickets.len());
        let judge = pool.judge(self, now);
        let mut joins = Vec::new();
        let is_too_much = under_way.len().saturating_mul(joining.waiting.len()) > MAX_COMPARED;
        let first = if is_too_much { options.turn as usize % under_way.len() } else { 0 };
        for at in (0..under_way.len()).map(|at| (first + at) % under_way.len()) {
            let Some(seats) = joining.lineup_of(self, &under_way[at]) else { continue };
            if let Some(lineup) = joining.fill(judge, seats, options) {
                let oldest = lineup.iter().flatten().copied().min().unwrap_or_default();
                joins.push(Join { under_way: at, lineup: pool.describe(&judge, oldest, &lineup) });
            }
        }
        joins
    }
}

/// The state of one pass.
struct Joining {
    /// The candidate of each given ticket. None for a refused one.
    candidates: Vec<Option<usize>>,
    /// The candidates that wait, the oldest first.
    waiting: Vec<usize>,
    compared: usize,
    budget: u32,
}

impl Joining {
    fn new(pool: &Pool, under_way: &[Vec<Seated>], tickets: usize) -> Self {
        let mut candidates = vec![None; tickets];
        for (candidate, origin) in pool.origins.iter().enumerate() {
            candidates[*origin] = Some(candidate);
        }
        let mut waits = vec![true; pool.candidates.len()];
        for seated in under_way.iter().flatten() {
            if let Some(candidate) = candidates.get(seated.ticket).copied().flatten() {
                waits[candidate] = false;
            }
        }
        let waiting = (0..waits.len()).filter(|candidate| waits[*candidate]).collect();
        Self { candidates, waiting, compared: 0, budget: u32::MAX }
    }

    /// Returns the lineup of a match under way.
    fn lineup_of(&self, rules: &RuleSet, seats: &[Seated]) -> Option<Lineup> {
        let mut lineup: Lineup = vec![Vec::new(); rules.slots.len()];
        for Seated { team, ticket } in seats {
            let slot = rules.slots.iter().position(|slot| slot.name == *team)?;
            lineup[slot].push(self.candidates.get(*ticket).copied().flatten()?);
        }
        lineup.iter().any(|tickets| !tickets.is_empty()).then_some(lineup)
    }

    /// Lets tickets join. Returns the new lineup if any did.
    fn fill(&mut self, judge: Judge<'_>, mut lineup: Lineup, options: Options) -> Option<Lineup> {
        self.budget = self.budget.min(options.pass_budget);
        let mut ignored = vec![super::Evaluations::default(); judge.rules.rules.len()];
        let before = judge.size(&lineup.concat());
        let most = judge.rules.max_players();
        let mut at = 0;
        while at < self.waiting.len() && judge.size(&lineup.concat()) < most && self.compared < MAX_COMPARED {
            let ticket = self.waiting[at];
            self.compared += 1;
            let budget = options.pivot_budget.min(self.budget);
            let mut search = Search::under_way(judge, ticket, &lineup, budget, &mut ignored);
            let younger = &self.waiting[at + 1..];
            let found = search.join(younger, MAX_OTHERS);
            self.budget = self.budget.saturating_sub(budget - search.budget_left());
            self.compared += search.compared();
            match found {
                Some(joined) => {
                    lineup = joined;
                    self.waiting.retain(|waiting| !lineup.iter().any(|tickets| tickets.contains(waiting)));
                }
                None => at += 1,
            }
        }
        (judge.size(&lineup.concat()) > before).then_some(lineup)
    }
}
