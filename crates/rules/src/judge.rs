//! Judges a lineup by the rules.

mod expression;
mod lasting;
mod quality;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::expression::{Leaf, Scope as Evaluation};
use crate::model::{
    Age, AttributeKind, CollectionOperation, LatencyReference, Operator, Party, Reference, Rule, RuleKind,
    RuleSet, Scope, Statement, Team, Value,
};
use crate::roles;
use crate::ticket::{Candidate, Member};

/// Which tickets are in which team: indexes into the pool, for each team.
pub(crate) type Lineup = Vec<Vec<usize>>;

/// Judges lineups of one pool at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge<'a> {
    pub(crate) rules: &'a RuleSet,
    pub(crate) pool: &'a [Candidate],
    /// The names of the regions.
    pub(crate) regions: &'a [Arc<str>],
    pub(crate) now: i64,
}

/// Which limits of a rule to check. A rule of which one can only be broken further may be checked while a match is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) min: bool,
    pub(crate) max: bool,
}

impl Bounds {
    pub(crate) const BOTH: Self = Self { min: true, max: true };
}

/// The waiting times of a lineup's tickets, in seconds.
#[derive(Clone, Copy, Debug)]
struct Ages {
    oldest: f64,
    average: f64,
    youngest: f64,
}

impl Ages {
    fn of(&self, age: Age) -> f64 {
        match age {
            Age::Oldest => self.oldest,
            Age::Average => self.average,
            Age::Youngest => self.youngest,
        }
    }
}

impl<'a> Judge<'a> {
    /// Returns by how much a lineup breaks a rule: 0 if it passes, else more than 1.
    pub(crate) fn excess(&self, rule: &Rule, lineup: &Lineup, bounds: Bounds) -> f64 {
        let ages = self.ages(lineup);
        self.excess_at(rule, lineup, bounds, &ages)
    }

    pub(crate) fn passes(&self, rule: &Rule, lineup: &Lineup) -> bool {
        self.excess(rule, lineup, Bounds::BOTH) == 0.0
    }

    /// Returns whether every team has enough players, not too many, and all its roles.
    pub(crate) fn is_complete(&self, lineup: &Lineup) -> bool {
        let ages = self.ages(lineup);
        self.has_sizes_and_roles(lineup, |team| team.min_at(ages.of(team.age)))
    }

    /// Returns whether no team has too many players, and every team all its roles. The minima do not count once a match is under way.
    pub(crate) fn has_places(&self, lineup: &Lineup) -> bool {
        self.has_sizes_and_roles(lineup, |_| 0)
    }

    fn has_sizes_and_roles(&self, lineup: &Lineup, min: impl Fn(&Team) -> usize) -> bool {
        self.rules.slots.iter().zip(lineup).all(|(slot, tickets)| {
            let team = &self.rules.teams[slot.team];
            let players = self.members(tickets);
            let sizes = min(team)..=team.max;
            // A team that may be absent needs no roles.
            let has_roles = || {
                players.is_empty()
                    || roles::assign(&team.roles, self.rules.role_attribute, &players, 0).is_some()
            };
            sizes.contains(&players.len()) && has_roles()
        })
    }

    pub(crate) fn members(&self, tickets: &[usize]) -> Vec<&'a Member> {
        tickets.iter().flat_map(|ticket| &self.pool[*ticket].players).collect()
    }

    pub(crate) fn size(&self, tickets: &[usize]) -> usize {
        tickets.iter().map(|ticket| self.pool[*ticket].players.len()).sum()
    }

    /// Returns the waiting time of a lineup that counts for a rule.
    pub(crate) fn age(&self, age: Age, lineup: &Lineup) -> f64 {
        self.ages(lineup).of(age)
    }

    fn ages(&self, lineup: &Lineup) -> Ages {
        let (mut oldest, mut youngest, mut sum, mut count) = (0.0_f64, f64::INFINITY, 0.0, 0.0);
        for ticket in lineup.iter().flatten() {
            let age = self.pool[*ticket].age(self.now);
            oldest = oldest.max(age);
            youngest = youngest.min(age);
            sum += age;
            count += 1.0;
        }
        Ages { oldest, average: if count > 0.0 { sum / count } else { 0.0 }, youngest: youngest.min(oldest) }
    }

    fn excess_at(&self, rule: &Rule, lineup: &Lineup, bounds: Bounds, ages: &Ages) -> f64 {
        let age = ages.of(rule.age);
        if rule.is_off(age) {
            return 0.0;
        }
        let limits = Limits {
            min: rule.min.at(age).filter(|_| bounds.min),
            max: rule.max.at(age).filter(|_| bounds.max),
        };
        let evaluation = Evaluation { judge: self, lineup, party: rule.party, once: false };
        match &rule.kind {
            RuleKind::Comparison { measurements, operator, reference } => {
                let once = reference.is_none() && rule.party != Party::Each;
                let values: Vec<Leaf> = leaves(&Evaluation { once, ..evaluation }, measurements);
                match reference {
                    None => compare_all(&values, *operator),
                    Some(reference) => {
                        let references = self.references(reference, rule, age, &evaluation);
                        let is_broken = |value: &Leaf| {
                            references.iter().any(|reference| !holds(value, *operator, reference))
                        };
                        count(values.iter().filter(|value| is_broken(value)).count())
                    }
                }
            }
            RuleKind::Distance { measurements, reference } => {
                let references = self.references(reference, rule, age, &evaluation);
                let mut worst = 0.0_f64;
                for value in leaves(&evaluation, measurements) {
                    for reference in &references {
                        if let (Leaf::Number(value), Leaf::Number(reference)) = (&value, reference) {
                            worst = worst.max(limits.excess((value - reference).abs()));
                        }
                    }
                }
                worst
            }
            RuleKind::BatchDistance { attribute } => {
                self.batch_excess(*attribute, rule.party, limits.max, lineup)
            }
            RuleKind::Collection { measurements, operation, reference } => {
                let references =
                    reference.as_ref().map(|reference| self.references(reference, rule, age, &evaluation));
                let references: BTreeSet<Arc<str>> =
                    references.into_iter().flatten().filter_map(Leaf::into_text).collect();
                let lists: Vec<Vec<Arc<str>>> =
                    measurements.iter().flat_map(|measurement| evaluation.lists(measurement)).collect();
                collection_excess(*operation, &lists, &references, limits)
            }
            RuleKind::Latency { distance_from } => {
                let max_distance = rule.max_distance.at(age);
                let is_met = self.common_regions(lineup).any(|region| {
                    self.is_region_met(region, lineup, limits.max, max_distance, *distance_from)
                });
                count(usize::from(!is_met && lineup.iter().any(|tickets| !tickets.is_empty())))
            }
            RuleKind::Sort { .. } => 0.0,
            RuleKind::Compound { statement } => count(usize::from(!self.holds(statement, lineup, ages))),
            RuleKind::Total { attribute } => {
                let values =
                    self.all_members(lineup).map(|member| crate::ticket::number(&member.values[*attribute]));
                limits.excess(values.sum())
            }
            RuleKind::PremadeSimilarity => {
                let largest = |tickets: &Vec<usize>| {
                    tickets.iter().map(|ticket| self.pool[*ticket].players.len()).max()
                };
                let largest: Vec<usize> = lineup.iter().filter_map(largest).collect();
                let spread = largest.iter().max().unwrap_or(&0) - largest.iter().min().unwrap_or(&0);
                limits.excess(spread as f64)
            }
            RuleKind::BlockList { attribute, scope } => count(match scope {
                Scope::Match => self.blocked(*attribute, &self.all_members(lineup).collect::<Vec<_>>()),
                Scope::Team => {
                    lineup.iter().map(|tickets| self.blocked(*attribute, &self.members(tickets))).sum()
                }
            }),
        }
    }

    fn all_members(&self, lineup: &'a Lineup) -> impl Iterator<Item = &'a Member> {
        let pool = self.pool;
        lineup.iter().flatten().flat_map(move |ticket| &pool[*ticket].players)
    }

    fn holds(&self, statement: &Statement, lineup: &Lineup, ages: &Ages) -> bool {
        match statement {
            Statement::Rule(at) => self.excess_at(&self.rules.rules[*at], lineup, Bounds::BOTH, ages) == 0.0,
            Statement::And(parts) => parts.iter().all(|part| self.holds(part, lineup, ages)),
            Statement::Or(parts) => parts.iter().any(|part| self.holds(part, lineup, ages)),
            Statement::Not(part) => !self.holds(part, lineup, ages),
            Statement::Xor(parts) => {
                parts.iter().filter(|part| self.holds(part, lineup, ages)).count() % 2 == 1
            }
        }
    }

    fn references(
        &self,
        reference: &Reference,
        rule: &Rule,
        age: f64,
        evaluation: &Evaluation<'_>,
    ) -> Vec<Leaf> {
        match reference {
            Reference::Number => rule.reference.at(age).map(Leaf::Number).into_iter().collect(),
            Reference::Texts(texts) => texts.iter().cloned().map(Leaf::Text).collect(),
            Reference::Expression(expression) => evaluation.leaves(expression),
        }
    }

    fn batch_excess(&self, attribute: usize, party: Party, max: Option<f64>, lineup: &Lineup) -> f64 {
        let tickets = lineup.iter().flatten().map(|ticket| &self.pool[*ticket]);
        if self.rules.attributes[attribute].kind == AttributeKind::Text {
            let texts = self.all_members(lineup).filter_map(|member| match &member.values[attribute] {
                Value::Text(text) => Some(text),
                _ => None,
            });
            let different = texts.collect::<BTreeSet<_>>().len().saturating_sub(1);
            return Limits { min: None, max: Some(max.unwrap_or(0.0)) }.excess(different as f64);
        }
        let ranges = tickets.map(|ticket| range(ticket, attribute, party));
        let (low, high) =
            ranges.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (l, h)| (low.min(l), high.max(h)));
        if low > high { 0.0 } else { Limits { min: None, max }.excess(high - low) }
    }

    fn blocked(&self, attribute: usize, members: &[&Member]) -> usize {
        let lists = |member: &Member, other: &Member| match &member.values[attribute] {
            Value::TextList(blocked) => !blocked.is_empty() && blocked.contains(&other.id),
            _ => false,
        };
        let pairs = members
            .iter()
            .enumerate()
            .flat_map(|(at, one)| members[at + 1..].iter().map(move |two| (one, two)));
        pairs.filter(|(one, two)| lists(one, two) || lists(two, one)).count()
    }

    /// Returns the regions that all players have a latency to.
    fn common_regions(&self, lineup: &'a Lineup) -> impl Iterator<Item = usize> {
        let pool = self.pool;
        let is_common = move |region: &usize| {
            lineup.iter().flatten().all(|ticket| pool[*ticket].latency[*region].is_finite())
        };
        (0..self.regions.len()).filter(is_common)
    }

    /// Returns the regions that every latency rule admits for this lineup, with the average latency, the best first.
    pub(crate) fn admitted_regions(&self, lineup: &Lineup) -> Vec<(Arc<str>, f64)> {
        let ages = self.ages(lineup);
        let rules: Vec<&Rule> = self
            .rules
            .conditions()
            .map(|(_, rule)| rule)
            .filter(|rule| matches!(rule.kind, RuleKind::Latency { .. }))
            .collect();
        let is_admitted = |region: &usize| {
            rules.iter().all(|rule| {
                let RuleKind::Latency { distance_from } = rule.kind else { return true };
                let age = ages.of(rule.age);
                rule.is_off(age)
                    || self.is_region_met(
                        *region,
                        lineup,
                        rule.max.at(age),
                        rule.max_distance.at(age),
                        distance_from,
                    )
            })
        };
        if lineup.iter().all(Vec::is_empty) {
            return Vec::new();
        }
        let average = |region: usize| {
            let (sum, players) = self
                .all_members(lineup)
                .map(|member| member.latency[region])
                .fold((0.0, 0.0_f64), |(sum, players), latency| (sum + latency, players + 1.0));
            sum / players.max(1.0)
        };
        let mut admitted: Vec<(Arc<str>, f64)> = self
            .common_regions(lineup)
            .filter(is_admitted)
            .map(|region| (self.regions[region].clone(), average(region)))
            .collect();
        admitted.sort_by(|one, two| one.1.total_cmp(&two.1).then_with(|| one.0.cmp(&two.0)));
        admitted
    }

    /// Returns whether one region passes all latency rules that are on. Each rule by itself is content with a region of its own.
    pub(crate) fn shares_region(&self, lineup: &Lineup) -> bool {
        let ages = self.ages(lineup);
        let is_on =
            |rule: &&Rule| matches!(rule.kind, RuleKind::Latency { .. }) && !rule.is_off(ages.of(rule.age));
        let several = self.rules.conditions().map(|(_, rule)| rule).filter(is_on).nth(1).is_some();
        !several || !self.admitted_regions(lineup).is_empty()
    }

    fn is_region_met(
        &self,
        region: usize,
        lineup: &Lineup,
        max: Option<f64>,
        max_distance: Option<f64>,
        distance_from: LatencyReference,
    ) -> bool {
        let latencies = || self.all_members(lineup).map(|member| member.latency[region]);
        if max.is_some_and(|max| latencies().any(|latency| latency > max)) {
            return false;
        }
        let Some(max_distance) = max_distance else { return true };
        let reference = match distance_from {
            LatencyReference::Min => latencies().fold(f64::INFINITY, f64::min),
            LatencyReference::Average => latencies().sum::<f64>() / latencies().count().max(1) as f64,
        };
        latencies().all(|latency| (latency - reference).abs() <= max_distance)
    }
}

/// The limits of a rule at one moment.
#[derive(Clone, Copy, Debug)]
struct Limits {
    min: Option<f64>,
    max: Option<f64>,
}

impl Limits {
    fn excess(&self, value: f64) -> f64 {
        // Sums of decimal fractions are not exact.
        const TOLERANCE: f64 = 1e-9;
        let above = self.max.map_or(0.0, |max| value - max);
        let below = self.min.map_or(0.0, |min| min - value);
        let excess = above.max(below);
        if excess > TOLERANCE { 1.0 + excess } else { 0.0 }
    }
}

/// Returns the lowest and the highest value of a ticket's players, as a party counts.
pub(crate) fn range(ticket: &Candidate, attribute: usize, party: Party) -> (f64, f64) {
    let average = ticket.averages[attribute];
    if ticket.players.len() == 1 || !matches!(party, Party::Min | Party::Max | Party::Each) {
        return (average, average);
    }
    let values = ticket.players.iter().map(|player| crate::ticket::number(&player.values[attribute]));
    let (low, high) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    match party {
        Party::Min => (low, low),
        Party::Max => (high, high),
        _ => (low, high),
    }
}

fn count(broken: usize) -> f64 {
    if broken == 0 { 0.0 } else { 1.0 + broken as f64 }
}

fn leaves(evaluation: &Evaluation<'_>, measurements: &[crate::Expression]) -> Vec<Leaf> {
    measurements.iter().flat_map(|measurement| evaluation.leaves(measurement)).collect()
}

fn compare_all(values: &[Leaf], operator: Operator) -> f64 {
    let pairs =
        values.iter().enumerate().flat_map(|(at, one)| values[at + 1..].iter().map(move |two| (one, two)));
    count(match operator {
        Operator::Equal => values.iter().skip(1).filter(|value| **value != values[0]).count(),
        _ => pairs.filter(|(one, two)| one == two).count(),
    })
}

fn holds(value: &Leaf, operator: Operator, reference: &Leaf) -> bool {
    match (value, reference) {
        (Leaf::Number(value), Leaf::Number(reference)) => match operator {
            Operator::Less => value < reference,
            Operator::LessOrEqual => value <= reference,
            Operator::Equal => value == reference,
            Operator::NotEqual => value != reference,
            Operator::GreaterOrEqual => value >= reference,
            Operator::Greater => value > reference,
        },
        (Leaf::Text(value), Leaf::Text(reference)) => (value == reference) == (operator == Operator::Equal),
        _ => false,
    }
}

fn collection_excess(
    operation: CollectionOperation,
    lists: &[Vec<Arc<str>>],
    references: &BTreeSet<Arc<str>>,
    limits: Limits,
) -> f64 {
    match operation {
        CollectionOperation::Intersection => {
            let Some((first, others)) = lists.split_first() else { return 0.0 };
            let common: BTreeSet<&Arc<str>> =
                first.iter().filter(|value| others.iter().all(|list| list.contains(value))).collect();
            limits.excess(common.len() as f64)
        }
        CollectionOperation::Contains => limits
            .excess(lists.iter().filter(|list| list.iter().any(|value| references.contains(value))).count()
                as f64),
        CollectionOperation::ReferenceIntersectionCount => {
            let overlap = |list: &Vec<Arc<str>>| {
                list.iter().filter(|value| references.contains(*value)).collect::<BTreeSet<_>>().len()
            };
            lists.iter().map(|list| limits.excess(overlap(list) as f64)).fold(0.0, f64::max)
        }
    }
}
