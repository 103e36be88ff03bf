//! Why a ticket waits: which rule keeps it from others, and when relaxations will admit them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::judge::{Bounds, Judge, Lineup};
use crate::matcher::{Matcher, Options, Pass, Pool};
use crate::model::{Rule, RuleSet};
use crate::ticket::Ticket;

/// How many of the nearest candidates are listed.
const NEAREST: usize = 5;
/// In a large pool only so many candidates, the oldest, are compared.
const MAX_COMPARED: usize = 10_000;

/// Why a ticket waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    pub reason: Reason,
    /// How many other tickets were compared with it.
    pub candidates: usize,
    /// How many of them pass each rule together with it. Rules about whole matches are left out.
    pub rules: Vec<RuleCount>,
    /// The candidates with the fewest broken rules.
    pub nearest: Vec<Near>,
}

/// What keeps a ticket from a match.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// It is matched now.
    Matched,
    /// The rule set cannot match it.
    Refused(String),
    /// There are too few players, whatever the rules.
    TooFewPlayers { waiting: usize, needed: usize },
    /// This rule admits the fewest candidates.
    Rule(Arc<str>),
    /// Pairs pass all rules, but no lineup of whole teams does. The rule, if one was always broken.
    NoLineup(Option<Arc<str>>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RuleCount {
    pub rule: Arc<str>,
    pub passed: usize,
    pub failed: usize,
}

/// A candidate and what separates it from the ticket.
#[derive(Clone, Debug, PartialEq)]
pub struct Near {
    pub ticket: Arc<str>,
    pub broken: Vec<Arc<str>>,
    /// In how many seconds relaxations admit it, if they do. 0: now.
    pub admitted_in: Option<f64>,
}

impl RuleSet {
    /// Explains why a ticket waits among others. Returns none if the ticket is not among them.
    pub fn why(&self, ticket: &str, tickets: &[Ticket], now: i64) -> Option<Why> {
        let nothing = |reason| Why { reason, candidates: 0, rules: Vec::new(), nearest: Vec::new() };
        let pool = Pool::new(self, tickets, 0);
        if let Some(refusal) = pool.refused.iter().find(|refusal| &*refusal.ticket == ticket) {
            return Some(nothing(Reason::Refused(refusal.reason.clone())));
        }
        let mine = pool.candidates.iter().position(|candidate| &*candidate.id == ticket)?;
        let judge = pool.judge(self, now);
        let others: Vec<usize> =
            (0..pool.candidates.len()).filter(|at| *at != mine).take(MAX_COMPARED).collect();
        let rules: Vec<&Rule> =
            self.conditions().map(|(_, rule)| rule).filter(|rule| rule.is_pairwise(self)).collect();
        let mut counts: Vec<RuleCount> =
            rules.iter().map(|rule| RuleCount { rule: rule.name.clone(), passed: 0, failed: 0 }).collect();
        let mut near = Vec::new();
        for other in &others {
            let mut broken = Vec::new();
            for (rule, count) in rules.iter().zip(&mut counts) {
                if passes_pair(&judge, rule, mine, *other) {
                    count.passed += 1;
                } else {
                    count.failed += 1;
                    broken.push(*rule);
                }
            }
            near.push((*other, broken));
        }
        let age_gap = |other: usize| (pool.candidates[other].created - pool.candidates[mine].created).abs();
        near.sort_by_key(|(other, broken)| (broken.len(), age_gap(*other)));
        let nearest = near.iter().take(NEAREST).map(|(other, broken)| Near {
            ticket: pool.candidates[*other].id.clone(),
            broken: broken.iter().map(|rule| rule.name.clone()).collect(),
            admitted_in: admitted_in(&judge, &rules, mine, *other),
        });
        let nearest = nearest.collect();
        let reason = self.reason(&pool, &judge, mine, &near, &counts);
        Some(Why { reason, candidates: others.len(), rules: counts, nearest })
    }

    fn reason(
        &self,
        pool: &Pool,
        judge: &Judge<'_>,
        mine: usize,
        near: &[(usize, Vec<&Rule>)],
        counts: &[RuleCount],
    ) -> Reason {
        let mut matcher = Matcher::new(*judge, Options::default());
        let mut pass = Pass { evaluations: vec![Default::default(); self.rules.len()], ..Pass::default() };
        for pivot in 0..pool.candidates.len() {
            if !matcher.is_taken(pivot)
                && matcher
                    .find(pivot, &mut pass)
                    .is_some_and(|lineup| lineup.iter().flatten().any(|at| *at == mine))
            {
                return Reason::Matched;
            }
        }
        let needed = self.min_players(pool.candidates[mine].age(judge.now));
        let size = |at: usize| pool.candidates[at].players.len();
        let waiting = size(mine) + near.iter().map(|(other, _)| size(*other)).sum::<usize>();
        if waiting < needed {
            return Reason::TooFewPlayers { waiting, needed };
        }
        let admitted = size(mine)
            + near
                .iter()
                .filter(|(_, broken)| broken.is_empty())
                .map(|(other, _)| size(*other))
                .sum::<usize>();
        if admitted < needed {
            // The rule that alone keeps most candidates away; else the one that fails most.
            let alone = |count: &RuleCount| {
                near.iter().filter(|(_, broken)| broken.len() == 1 && broken[0].name == count.rule).count()
            };
            let binding = counts.iter().max_by_key(|count| (alone(count), count.failed));
            if let Some(binding) = binding.filter(|count| count.failed > 0) {
                return Reason::Rule(binding.rule.clone());
            }
        }
        let never: Option<usize> = self
            .conditions()
            .map(|(at, _)| at)
            .find(|at| pass.evaluations[*at].failed > 0 && pass.evaluations[*at].passed == 0);
        Reason::NoLineup(never.map(|at| self.rules[at].name.clone()))
    }
}

/// Returns whether two tickets pass a rule, whichever teams they are in.
fn passes_pair(judge: &Judge<'_>, rule: &Rule, one: usize, two: usize) -> bool {
    let slots = judge.rules.slots.len();
    (0..slots).any(|other| {
        let mut lineup: Lineup = vec![Vec::new(); slots];
        lineup[0].push(one);
        lineup[other].push(two);
        judge.excess(rule, &lineup, Bounds { min: rule.is_min_pairwise(), max: true }) == 0.0
    })
}

/// Returns in how many seconds two tickets pass all rules.
fn admitted_in(judge: &Judge<'_>, rules: &[&Rule], one: usize, two: usize) -> Option<f64> {
    let mut moments: BTreeSet<i64> = [judge.now].into();
    for schedule in rules.iter().flat_map(|rule| rule.schedules()).map(|(_, schedule)| schedule) {
        for change in schedule.changes() {
            for ticket in [one, two] {
                let at = judge.pool[ticket].created + (change * 1000.0).ceil() as i64;
                moments.extend((at > judge.now).then_some(at));
            }
            // Of averages: half way between the two.
            let middle = i64::midpoint(judge.pool[one].created, judge.pool[two].created)
                + (change * 1000.0).ceil() as i64
                + 1;
            moments.extend((middle > judge.now).then_some(middle));
        }
    }
    moments.into_iter().find_map(|now| {
        let then = Judge { now, ..*judge };
        let holds = rules.iter().all(|rule| passes_pair(&then, rule, one, two));
        holds.then(|| (now - judge.now) as f64 / 1000.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Player, Value};

    fn rules(more: &str) -> RuleSet {
        RuleSet::parse(&format!(
            "name = \"duel\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\nmax = 1\n[teams.b]\nmax = 1\n\
             [rules.skill]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10\n\
             relax = [{{ after = 10, max = 50 }}, {{ after = 30, max = 100 }}]\n{more}"
        ))
        .unwrap()
    }

    fn ticket(id: &str, created: i64, skill: f64) -> Ticket {
        let player = Player {
            id: id.into(),
            attributes: [("skill".into(), Value::Number(skill))].into(),
            latency: [("eu".into(), skill)].into(),
        };
        Ticket { id: id.into(), created, players: vec![player] }
    }

    #[test]
    fn binding_rule_and_the_time_of_admission_are_named() {
        let tickets = [ticket("anna", 0, 100.0), ticket("ben", 5_000, 180.0), ticket("carl", 5_000, 400.0)];
        let why = rules("").why("ben", &tickets, 6_000).unwrap();
        assert_eq!(why.reason, Reason::Rule("skill".into()));
        assert_eq!(why.rules, [RuleCount { rule: "skill".into(), passed: 0, failed: 2 }]);
        let anna = why.nearest.iter().find(|near| &*near.ticket == "anna").unwrap();
        // Anna is the older one: her 30 seconds end at 30.
        assert_eq!((anna.broken.as_slice(), anna.admitted_in), (["skill".into()].as_slice(), Some(24.0)));
        let carl = why.nearest.iter().find(|near| &*near.ticket == "carl").unwrap();
        assert_eq!(carl.admitted_in, None);
    }

    #[test]
    fn binding_rule_is_the_one_that_alone_keeps_candidates_away() {
        let rules = rules("[rules.near]\ntype = \"latency\"\nmax = 105\n");
        let tickets = [
            ticket("anna", 0, 100.0),
            ticket("ben", 0, 106.0),
            ticket("carl", 0, 109.0),
            ticket("dora", 0, 300.0),
        ];
        let why = rules.why("anna", &tickets, 0).unwrap();
        assert_eq!(why.reason, Reason::Rule("near".into()));
    }

    #[test]
    fn other_reasons_are_told_apart() {
        let rules = rules("");
        let one = [ticket("anna", 0, 100.0)];
        assert_eq!(
            rules.why("anna", &one, 0).unwrap().reason,
            Reason::TooFewPlayers { waiting: 1, needed: 2 }
        );
        let two = [ticket("anna", 0, 100.0), ticket("ben", 0, 101.0)];
        assert_eq!(rules.why("ben", &two, 0).unwrap().reason, Reason::Matched);
        assert!(rules.why("zoe", &two, 0).is_none());
        let bare = Ticket { players: vec![Player::default()], ..ticket("anna", 0, 0.0) };
        assert!(
            matches!(rules.why("anna", &[bare], 0).unwrap().reason, Reason::Refused(why) if why.contains("skill is missing"))
        );
    }
}
