//! Swaps tickets between teams: until the rules hold, then until the teams are as equal as swaps can make them.

use super::search::Search;

/// How often all pairs are gone through.
const MAX_ROUNDS: usize = 4;
/// In larger matches a round tries only so many pairs.
const MAX_PAIRS: usize = 2_000;

impl Search<'_, '_> {
    /// Swaps tickets while that brings the lineup closer to a match. Returns whether it is one.
    pub(super) fn repair(&mut self) -> bool {
        if self.lineup.len() < 2 {
            return false;
        }
        let mut excess = self.excess();
        for _ in 0..MAX_ROUNDS {
            let before = excess;
            for (one, two) in self.pairs() {
                if !self.swap(one, two) {
                    continue;
                }
                if !self.spend() {
                    return false;
                }
                let swapped = self.excess();
                if swapped < excess {
                    excess = swapped;
                    if excess == 0.0 {
                        return self.is_match();
                    }
                } else {
                    self.swap(one, two);
                }
            }
            if excess >= before {
                break;
            }
        }
        false
    }

    /// Swaps tickets while that makes the teams more equal and the lineup stays a match.
    pub(super) fn improve(&mut self) {
        // Players of a match under way stay in their team.
        if self.judge.rules.quality.balance <= 0.0 || self.lineup.len() < 2 || self.seated.is_some() {
            return;
        }
        let mut imbalance = self.judge.imbalance(&self.lineup);
        for _ in 0..MAX_ROUNDS {
            let before = imbalance;
            for (one, two) in self.pairs() {
                if !self.swap(one, two) {
                    continue;
                }
                let swapped = self.judge.imbalance(&self.lineup);
                if swapped < imbalance - 1e-9 && self.is_match() {
                    imbalance = swapped;
                } else {
                    self.swap(one, two);
                }
            }
            if imbalance >= before {
                break;
            }
        }
    }

    /// Lists the pairs of places in different teams.
    fn pairs(&self) -> Vec<((usize, usize), (usize, usize))> {
        let mut pairs = Vec::new();
        for first in 0..self.lineup.len() {
            for second in first + 1..self.lineup.len() {
                for one in 0..self.lineup[first].len() {
                    pairs.extend((0..self.lineup[second].len()).map(|two| ((first, one), (second, two))));
                    if pairs.len() >= MAX_PAIRS {
                        return pairs;
                    }
                }
            }
        }
        pairs
    }

    /// Swaps two tickets if the teams have room. The same call swaps them back.
    fn swap(&mut self, one: (usize, usize), two: (usize, usize)) -> bool {
        let (first, second) = (self.lineup[one.0][one.1], self.lineup[two.0][two.1]);
        let size = |ticket: usize| self.judge.pool[ticket].players.len();
        let counts = (
            self.counts[one.0] - size(first) + size(second),
            self.counts[two.0] - size(second) + size(first),
        );
        let max = |slot: usize| self.judge.rules.teams[self.judge.rules.slots[slot].team].max;
        if counts.0 > max(one.0) || counts.1 > max(two.0) {
            return false;
        }
        (self.lineup[one.0][one.1], self.lineup[two.0][two.1]) = (second, first);
        (self.counts[one.0], self.counts[two.0]) = counts;
        true
    }

    /// Returns by how much the lineup breaks all rules together.
    fn excess(&self) -> f64 {
        let judge = self.judge;
        let is_whole = judge.is_complete(&self.lineup) && judge.shares_region(&self.lineup);
        let incomplete = if is_whole { 0.0 } else { 1e6 };
        let rules = judge
            .rules
            .conditions()
            .map(|(_, rule)| judge.excess(rule, &self.lineup, crate::judge::Bounds::BOTH));
        incomplete + rules.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Lineup;
    use crate::matcher::{Evaluations, Pool};
    use crate::{Player, RuleSet, Ticket, Value};

    const QUALITY: &str = "[quality]\nattribute = \"skill\"\nbalance = 1\n";
    const SAME_AVERAGE: &str = "[rules.fair]\ntype = \"distance\"\nparty = \"each\"\n\
        measurements = \"avg(teams[*].players.attributes[skill])\"\n\
        reference = \"avg(flatten(teams[*].players.attributes[skill]))\"\nmax = 5\n";

    /// Tickets by the skills of their players.
    fn after(
        more: &str,
        parties: &[&[f64]],
        lineup: Lineup,
        budget: u32,
        change: impl FnOnce(&mut Search<'_, '_>) -> bool,
    ) -> (bool, Lineup, Vec<usize>) {
        let rules = RuleSet::parse(&format!(
            "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.side]\ncount = 2\nmin = 1\nmax = 3\n{more}"
        ))
        .unwrap();
        let ticket = |(at, skills): (usize, &&[f64])| {
            let player = |skill: &f64| Player {
                id: format!("{at}/{skill}").into(),
                attributes: [("skill".into(), Value::Number(*skill))].into(),
                latency: [].into(),
            };
            let players = skills.iter().map(player).collect();
            Ticket { id: format!("t{at}").into(), created: at as i64, players }
        };
        let tickets: Vec<Ticket> = parties.iter().enumerate().map(ticket).collect();
        let pool = Pool::new(&rules, &tickets, 0);
        let judge = pool.judge(&rules, 1_000);
        let mut evaluations = vec![Evaluations::default(); rules.rules.len()];
        let mut search = Search::new(judge, 0, budget, &mut evaluations);
        search.counts = lineup.iter().map(|tickets| judge.size(tickets)).collect();
        search.lineup = lineup;
        let found = change(&mut search);
        (found, search.lineup.clone(), search.counts.clone())
    }

    fn improved(more: &str, parties: &[&[f64]], lineup: Lineup) -> (Lineup, Vec<usize>) {
        let improve = |search: &mut Search<'_, '_>| {
            search.improve();
            true
        };
        let (_, lineup, counts) = after(more, parties, lineup, 0, improve);
        (lineup, counts)
    }

    #[test]
    fn swaps_make_teams_more_equal() {
        let parties: [&[f64]; 4] = [&[90.0], &[80.0], &[20.0], &[10.0]];
        let (lineup, counts) = improved(QUALITY, &parties, vec![vec![0, 1], vec![2, 3]]);
        assert_eq!((lineup, counts), (vec![vec![2, 1], vec![0, 3]], vec![2, 2]));
    }

    #[test]
    fn without_a_weight_or_a_second_team_nothing_is_swapped() {
        let parties: [&[f64]; 4] = [&[90.0], &[80.0], &[20.0], &[10.0]];
        let unequal = vec![vec![0, 1], vec![2, 3]];
        assert_eq!(improved("", &parties, unequal.clone()).0, unequal);
    }

    #[test]
    fn parties_are_swapped_only_where_they_have_room_and_counts_follow() {
        // A pair may take the place of one of two players, and not of one of three.
        let parties: [&[f64]; 4] = [&[90.0, 90.0], &[50.0], &[45.0], &[40.0]];
        let (lineup, counts) = improved(QUALITY, &parties[..3], vec![vec![0], vec![1, 2]]);
        assert_eq!((lineup, counts), (vec![vec![1], vec![0, 2]], vec![1, 3]));
        let full = vec![vec![0], vec![1, 2, 3]];
        assert_eq!(improved(QUALITY, &parties, full.clone()), (full, vec![2, 3]));
    }

    #[test]
    fn equal_teams_are_not_bought_with_a_broken_rule() {
        let apart = "[rules.first]\ntype = \"comparison\"\nmeasurements = \"min(teams[side_1].players.attributes[skill])\"\n\
                     operation = \">\"\nreference = 50\n";
        let parties: [&[f64]; 4] = [&[90.0], &[80.0], &[20.0], &[10.0]];
        let allowed = vec![vec![0, 1], vec![2, 3]];
        assert_eq!(improved(&format!("{apart}{QUALITY}"), &parties, allowed.clone()).0, allowed);
    }

    #[test]
    fn repair_swaps_until_the_rules_hold_while_there_is_budget() {
        let parties: [&[f64]; 4] = [&[90.0], &[80.0], &[20.0], &[10.0]];
        let unequal = vec![vec![0, 1], vec![2, 3]];
        let (found, lineup, counts) =
            after(SAME_AVERAGE, &parties, unequal.clone(), 100, |search| search.repair());
        assert!(found, "{lineup:?}");
        assert_eq!((lineup, counts), (vec![vec![2, 1], vec![0, 3]], vec![2, 2]));
        assert!(!after(SAME_AVERAGE, &parties, unequal, 0, |search| search.repair()).0);
        // No swap helps these.
        let hopeless: [&[f64]; 2] = [&[90.0], &[10.0]];
        assert!(!after(SAME_AVERAGE, &hopeless, vec![vec![0], vec![1]], 100, |search| search.repair()).0);
    }
}
