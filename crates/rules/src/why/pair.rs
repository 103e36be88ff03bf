//! Compares the ticket with one candidate.

use std::collections::BTreeSet;

use super::Miss;
use crate::judge::{Bounds, Judge, Lineup};
use crate::model::{Rule, RuleKind};

/// Two tickets of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) judge: &'a Judge<'a>,
    pub(super) one: usize,
    pub(super) two: usize,
}

impl Pair<'_> {
    /// Returns by how much two tickets break a rule, in the teams that suit them best. 0: they pass.
    pub(super) fn excess(&self, rule: &Rule) -> f64 {
        let excess = self.excess_within(rule, Bounds { min: rule.is_min_pairwise(), max: true });
        match rule.kind {
            // The judge counts whether a region suits; here it matters by how much the best one does not.
            RuleKind::Latency { .. } if excess > 0.0 => match (self.latency(), self.limit(rule, Side::Max)) {
                (Some(latency), Some(max)) => 1.0 + (latency - max).max(0.0),
                _ => f64::MAX,
            },
            _ => excess,
        }
    }

    fn excess_within(&self, rule: &Rule, bounds: Bounds) -> f64 {
        let slots = self.judge.rules.slots.len();
        let mut least = f64::INFINITY;
        for other in 0..slots {
            let mut lineup: Lineup = vec![Vec::new(); slots];
            lineup[0].push(self.one);
            lineup[other].push(self.two);
            least = least.min(self.judge.excess(rule, &lineup, bounds));
            if least == 0.0 {
                break;
            }
        }
        least
    }

    /// Describes by how much they break the rule.
    pub(super) fn miss(&self, rule: &Rule) -> Miss {
        let ticket = self.judge.pool[self.two].id.clone();
        let (max, min) = (Bounds { min: false, max: true }, Bounds { min: true, max: false });
        let by = |bounds: Bounds| Some(self.excess_within(rule, bounds) - 1.0).filter(|by| *by > 0.0);
        let measured = match rule.kind {
            RuleKind::Latency { .. } => self.latency().zip(self.limit(rule, Side::Max)),
            RuleKind::BatchDistance { .. } | RuleKind::Distance { .. } | RuleKind::Collection { .. } => {
                let above = by(max).map(|by| {
                    let limit = self.limit(rule, Side::Max).unwrap_or(0.0);
                    (limit + by, limit)
                });
                let below =
                    || by(min).zip(self.limit(rule, Side::Min)).map(|(by, limit)| (limit - by, limit));
                above.or_else(below)
            }
            _ => None,
        };
        Miss {
            ticket,
            value: measured.map(|(value, _)| rounded(value)),
            limit: measured.map(|(_, limit)| limit),
            by: measured.map(|(value, limit)| rounded((value - limit).abs())),
        }
    }

    /// Returns the limit that counts for these two.
    fn limit(&self, rule: &Rule, side: Side) -> Option<f64> {
        let mut lineup: Lineup = vec![Vec::new(); self.judge.rules.slots.len()];
        lineup[0].extend([self.one, self.two]);
        let age = self.judge.age(rule.age, &lineup);
        match side {
            Side::Min => rule.min.at(age),
            Side::Max => rule.max.at(age),
        }
    }

    /// Returns the higher of their latencies to the region that suits them best.
    fn latency(&self) -> Option<f64> {
        let [one, two] = [self.one, self.two].map(|ticket| &self.judge.pool[ticket].latency);
        let worst = one.iter().zip(two).map(|(one, two)| one.max(*two));
        worst.filter(|latency| latency.is_finite()).reduce(f64::min)
    }

    /// Returns in how many seconds they pass all rules.
    pub(super) fn admitted_in(&self, rules: &[&Rule]) -> Option<f64> {
        let judge = self.judge;
        let mut moments: BTreeSet<i64> = [judge.now].into();
        for schedule in rules.iter().flat_map(|rule| rule.schedules()).map(|(_, schedule)| schedule) {
            for change in schedule.changes() {
                let after = (change * 1000.0).ceil() as i64;
                let (one, two) = (judge.pool[self.one].created, judge.pool[self.two].created);
                // Of averages: half way between the two.
                let middle = i64::midpoint(one, two) + 1;
                moments.extend(
                    [one, two, middle].map(|start| start + after).iter().filter(|at| **at > judge.now),
                );
            }
        }
        moments.into_iter().find_map(|now| {
            let then = Judge { now, ..*judge };
            let pair = Pair { judge: &then, ..*self };
            let holds = rules.iter().all(|rule| pair.excess(rule) == 0.0);
            holds.then(|| (now - judge.now) as f64 / 1000.0)
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Min,
    Max,
}

/// Hides what sums of decimal fractions add.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
