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
