//! Why a ticket waits: which rule keeps it from others, by how much, and when relaxations will admit them.

mod pair;
mod text;
mod unsent;

use std::sync::Arc;

use serde::Serialize;

use self::pair::Pair;
use crate::judge::Judge;
use crate::matcher::{Matcher, Options, Pass, Pool};
use crate::model::{Rule, RuleSet, Schedule};
use crate::ticket::Ticket;

pub use self::unsent::Unsent;

/// How many of the nearest candidates are listed.
const NEAREST: usize = 5;
/// In a large pool only so many candidates, the oldest, are compared.
const MAX_COMPARED: usize = 10_000;

/// Why a ticket waits. [`Why::lines`] says the same in sentences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    pub reason: Reason,
    /// How long it has waited, in seconds.
    #[serde(rename = "waited_seconds")]
    pub waited: f64,
    /// How many other tickets were compared with it.
    pub candidates: usize,
    /// Every rule that a match must pass.
    pub rules: Vec<RuleWhy>,
    /// The candidates with the fewest broken rules.
    pub nearest: Vec<Near>,
    /// The attributes that the rules read and that no ticket of the pool has.
    pub unsent: Vec<Unsent>,
}

/// What keeps a ticket from a match.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Reason {
    /// It is matched now.
    Matched,
    /// The rule set cannot match it.
    Refused { detail: String },
    /// There are too few players, whatever the rules.
    TooFewPlayers {
        waiting: usize,
        needed: usize,
        /// When fewer suffice, if the minimum of a team falls.
        #[serde(skip_serializing_if = "Option::is_none")]
        relaxes: Option<FewerPlayers>,
    },
    /// This rule admits the fewest candidates.
    Rule { rule: Arc<str> },
    /// Pairs pass all rules, but no lineup of whole teams does. The rule, if one was always broken.
    NoLineup { rule: Option<Arc<str>> },
}

/// How many players suffice later.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FewerPlayers {
    pub needed: usize,
    #[serde(rename = "in_seconds")]
    pub seconds: f64,
}

/// What one rule needs, and who passes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleWhy {
    pub rule: Arc<str>,
    /// Its type, as in the document.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether a relaxation has turned it off.
    pub is_off: bool,
    /// What it needs now, if this ticket is the one whose waiting time counts.
    pub limits: Vec<Limit>,
    /// In how many seconds a limit changes, or the rule is turned off.
    #[serde(rename = "changes_in_seconds")]
    pub changes_in: Option<f64>,
    /// How many candidates pass it together with the ticket. `None` if only whole matches can be judged.
    pub passed: Option<usize>,
    pub failed: Option<usize>,
    /// The candidate that fails by the least.
    pub nearest_miss: Option<Miss>,
}

/// A limit of a rule at a waiting time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// `min`, `max`, `max_distance` or `reference`.
    pub name: &'static str,
    /// `None` while there is no limit.
    pub value: Option<f64>,
    /// The waiting time at which it took this value.
    #[serde(rename = "since_seconds")]
    pub since: f64,
    /// The next value.
    pub next: Option<NextLimit>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NextLimit {
    pub value: Option<f64>,
    #[serde(rename = "in_seconds")]
    pub seconds: f64,
}

/// By how much a candidate fails a rule. The numbers are missing if the rule compares no numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Miss {
    pub ticket: Arc<str>,
    pub value: Option<f64>,
    /// What the rule admits to these two tickets.
    pub limit: Option<f64>,
    pub by: Option<f64>,
}

/// A candidate and what separates it from the ticket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Near {
    pub ticket: Arc<str>,
    pub broken: Vec<Arc<str>>,
    /// In how many seconds relaxations admit it, if they do. 0: now.
    #[serde(rename = "admitted_in_seconds")]
    pub admitted_in: Option<f64>,
}

/// How the candidates fare with a rule that looks at two tickets.
#[derive(Debug, Default)]
struct Count {
    passed: usize,
    failed: usize,
    /// The candidate that breaks it by the least, and by how much.
    nearest: Option<(usize, f64)>,
}

impl RuleSet {
    /// Explains why a ticket waits among others. Returns none if the ticket is not among them.
    pub fn why(&self, ticket: &str, tickets: &[Ticket], now: i64) -> Option<Why> {
        let waited = |created: i64| now.saturating_sub(created).max(0) as f64 / 1000.0;
        let unsent = self.unsent(tickets);
        let pool = Pool::new(self, tickets, 0);
        if let Some(refusal) = pool.refused.iter().find(|refusal| &*refusal.ticket == ticket) {
            let created = tickets.iter().find(|other| &*other.id == ticket)?.created;
            return Some(Why {
                reason: Reason::Refused { detail: refusal.reason.clone() },
                waited: waited(created),
                candidates: 0,
                rules: Vec::new(),
                nearest: Vec::new(),
                unsent,
            });
        }
        let mine = pool.candidates.iter().position(|candidate| &*candidate.id == ticket)?;
        let judge = pool.judge(self, now);
        let others: Vec<usize> =
            (0..pool.candidates.len()).filter(|at| *at != mine).take(MAX_COMPARED).collect();
        let rules: Vec<&Rule> =
            self.conditions().map(|(_, rule)| rule).filter(|rule| rule.is_pairwise(self)).collect();
        let mut counts: Vec<Count> = rules.iter().map(|_| Count::default()).collect();
        let mut near = Vec::new();
        for other in &others {
            let pair = Pair { judge: &judge, one: mine, two: *other };
            let mut broken = Vec::new();
            for (rule, count) in rules.iter().zip(&mut counts) {
                let excess = pair.excess(rule);
                if excess == 0.0 {
                    count.passed += 1;
                } else {
                    count.failed += 1;
                    broken.push(*rule);
                    if count.nearest.is_none_or(|(_, least)| excess < least) {
                        count.nearest = Some((*other, excess));
                    }
                }
            }
            near.push((*other, broken));
        }
        let age_gap = |other: usize| (pool.candidates[other].created - pool.candidates[mine].created).abs();
        near.sort_by_key(|(other, broken)| (broken.len(), age_gap(*other)));
        let nearest = near.iter().take(NEAREST).map(|(other, broken)| Near {
            ticket: pool.candidates[*other].id.clone(),
            broken: broken.iter().map(|rule| rule.name.clone()).collect(),
            admitted_in: Pair { judge: &judge, one: mine, two: *other }.admitted_in(&rules),
        });
        let nearest = nearest.collect();
        let named: Vec<(&Rule, &Count)> = rules.iter().copied().zip(&counts).collect();
        let reason = self.reason(&pool, &judge, mine, &near, &named);
        let age = pool.candidates[mine].age(now);
        let of_rule = |(_, rule): (usize, &Rule)| {
            let count = named.iter().find(|(other, _)| std::ptr::eq(*other, rule)).map(|(_, count)| *count);
            let miss = count.and_then(|count| count.nearest);
            let miss = miss.map(|(other, _)| Pair { judge: &judge, one: mine, two: other }.miss(rule));
            RuleWhy::new(rule, age, count, miss)
        };
        let rules = self.conditions().map(of_rule).collect();
        Some(Why { reason, waited: age, candidates: others.len(), rules, nearest, unsent })
    }

    /// Returns when a ticket of this age needs so few players that these suffice, or else when it first needs fewer than now.
    fn fewer_players(&self, age: f64, waiting: usize) -> Option<FewerPlayers> {
        let mut ages: Vec<f64> =
            self.slots.iter().flat_map(|slot| self.teams[slot.team].min.changes()).collect();
        ages.retain(|at| *at > age && self.min_players(*at) < self.min_players(age));
        ages.sort_by(f64::total_cmp);
        let at = ages.iter().find(|at| self.min_players(**at) <= waiting).or(ages.first())?;
        Some(FewerPlayers { needed: self.min_players(*at), seconds: at - age })
    }

    fn reason(
        &self,
        pool: &Pool,
        judge: &Judge<'_>,
        mine: usize,
        near: &[(usize, Vec<&Rule>)],
        counts: &[(&Rule, &Count)],
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
            let relaxes = self.fewer_players(pool.candidates[mine].age(judge.now), waiting);
            return Reason::TooFewPlayers { waiting, needed, relaxes };
        }
        let admitted = size(mine)
            + near
                .iter()
                .filter(|(_, broken)| broken.is_empty())
                .map(|(other, _)| size(*other))
                .sum::<usize>();
        if admitted < needed {
            // The rule that alone keeps most candidates away; else the one that fails most.
            let alone = |rule: &Rule| {
                near.iter().filter(|(_, broken)| broken.len() == 1 && broken[0].name == rule.name).count()
            };
            let binding = counts.iter().max_by_key(|(rule, count)| (alone(rule), count.failed));
            if let Some((rule, _)) = binding.filter(|(_, count)| count.failed > 0) {
                return Reason::Rule { rule: rule.name.clone() };
            }
        }
        let never: Option<usize> = self
            .conditions()
            .map(|(at, _)| at)
            .find(|at| pass.evaluations[*at].failed > 0 && pass.evaluations[*at].passed == 0);
        Reason::NoLineup { rule: never.map(|at| self.rules[at].name.clone()) }
    }
}

impl RuleWhy {
    fn new(rule: &Rule, age: f64, count: Option<&Count>, nearest_miss: Option<Miss>) -> Self {
        let limits: Vec<Limit> = rule
            .schedules()
            .into_iter()
            .filter(|(name, schedule)| *name != "off" && !schedule.is_absent())
            .map(|(name, schedule)| Limit::new(name, schedule, age))
            .collect();
        let is_off = rule.is_off(age);
        let switches = rule.off.changes().into_iter().filter(|at| *at > age && rule.is_off(*at) != is_off);
        let next = limits.iter().filter_map(|limit| limit.next.as_ref()).map(|next| next.seconds);
        let changes_in = next.chain(switches.map(|at| at - age)).reduce(f64::min);
        Self {
            rule: rule.name.clone(),
            kind: rule.kind.word(),
            is_off,
            limits,
            changes_in,
            passed: count.map(|count| count.passed),
            failed: count.map(|count| count.failed),
            nearest_miss,
        }
    }
}

impl Limit {
    fn new(name: &'static str, schedule: &Schedule, age: f64) -> Self {
        let value = schedule.at(age);
        let changes = schedule.changes();
        let before = |at: f64| schedule.at(at.next_down());
        let since = changes.iter().filter(|at| **at <= age && before(**at) != schedule.at(**at));
        let next = changes.iter().find(|at| **at > age && schedule.at(**at) != value);
        Self {
            name,
            value,
            since: since.copied().fold(0.0, f64::max),
            next: next.map(|at| NextLimit { value: schedule.at(*at), seconds: at - age }),
        }
    }
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
        assert_eq!(why.reason, Reason::Rule { rule: "skill".into() });
        assert_eq!((why.waited, why.candidates, why.rules.len()), (1.0, 2, 1));
        let skill = &why.rules[0];
        assert_eq!((skill.passed, skill.failed, skill.kind), (Some(0), Some(2), "batch-distance"));
        let next = Some(NextLimit { value: Some(50.0), seconds: 9.0 });
        assert_eq!(skill.limits, [Limit { name: "max", value: Some(10.0), since: 0.0, next }]);
        assert_eq!(skill.changes_in, Some(9.0));
        let miss = Miss { ticket: "anna".into(), value: Some(80.0), limit: Some(10.0), by: Some(70.0) };
        assert_eq!(skill.nearest_miss, Some(miss));
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
        assert_eq!(why.reason, Reason::Rule { rule: "near".into() });
    }

    #[test]
    fn falling_minimum_says_when_fewer_players_suffice() {
        let rules = RuleSet::parse(
            "name = \"coop\"\n[teams.all]\nmin = 4\nmax = 4\nrelax = [{ after = 15, min = 3 }, { after = 30, min = 2 }]\n",
        )
        .unwrap();
        let player =
            |id: &str, created| Ticket { players: vec![Player::default()], ..ticket(id, created, 0.0) };
        let reason = |tickets: &[Ticket], now| rules.why("anna", tickets, now).unwrap().reason;
        let relaxes = Some(FewerPlayers { needed: 2, seconds: 20.0 });
        let (anna, ben) = (player("anna", 0), player("ben", 0));
        let two = [anna.clone(), ben];
        assert_eq!(reason(&two, 10_000), Reason::TooFewPlayers { waiting: 2, needed: 4, relaxes });
        let lines = rules.why("anna", &two, 10_000).unwrap().lines();
        assert_eq!(lines[0], "2 of 4 players wait; 2 suffice in 20 s");
        // Alone, no minimum is low enough: the next change is named.
        let relaxes = Some(FewerPlayers { needed: 3, seconds: 5.0 });
        let alone = [anna];
        assert_eq!(reason(&alone, 10_000), Reason::TooFewPlayers { waiting: 1, needed: 4, relaxes });
        assert_eq!(reason(&alone, 30_000), Reason::TooFewPlayers { waiting: 1, needed: 2, relaxes: None });
    }

    #[test]
    fn other_reasons_are_distinguished() {
        let rules = rules("");
        let one = [ticket("anna", 0, 100.0)];
        assert_eq!(
            rules.why("anna", &one, 0).unwrap().reason,
            Reason::TooFewPlayers { waiting: 1, needed: 2, relaxes: None }
        );
        let two = [ticket("anna", 0, 100.0), ticket("ben", 0, 101.0)];
        assert_eq!(rules.why("ben", &two, 0).unwrap().reason, Reason::Matched);
        assert!(rules.why("zoe", &two, 0).is_none());
        let bare = Ticket { players: vec![Player::default()], ..ticket("anna", 0, 0.0) };
        assert!(
            matches!(rules.why("anna", &[bare], 0).unwrap().reason, Reason::Refused { detail } if detail.contains("skill is missing"))
        );
    }
}
