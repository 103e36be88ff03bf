//! Rule sets: pure types. Everything is checked when a document is read, so these values are consistent.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::expression::Expression;
use crate::mistake::Position;

/// The rules of a kind of match.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSet {
    pub name: Arc<str>,
    /// A label of your own, which matches carry.
    pub version: Option<Arc<str>>,
    pub attributes: Vec<Attribute>,
    pub teams: Vec<Team>,
    /// The attribute that lists the roles a player would play, the preferred one first.
    pub role_attribute: Option<usize>,
    /// In the order of the document: among sorts, the first dominates.
    pub rules: Vec<Rule>,
    pub quality: Quality,
    /// The largest party. By default, the largest team.
    pub max_party: usize,
    pub(crate) slots: Vec<Slot>,
}

/// A property of players.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    pub name: Arc<str>,
    pub kind: AttributeKind,
    /// The value of a player who has none. Without it, every player must have one.
    pub default: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeKind {
    Number,
    Text,
    TextList,
    NumberMap,
}

impl AttributeKind {
    pub(crate) const WORDS: &'static [(&'static str, Self)] = &[
        ("number", Self::Number),
        ("string", Self::Text),
        ("string-list", Self::TextList),
        ("number-map", Self::NumberMap),
    ];

    pub(crate) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("?", |(word, _)| word)
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Text(Arc<str>),
    TextList(Vec<Arc<str>>),
    NumberMap(BTreeMap<Arc<str>, f64>),
}

impl Value {
    pub fn kind(&self) -> AttributeKind {
        match self {
            Self::Number(_) => AttributeKind::Number,
            Self::Text(_) => AttributeKind::Text,
            Self::TextList(_) => AttributeKind::TextList,
            Self::NumberMap(_) => AttributeKind::NumberMap,
        }
    }
}

/// A kind of team.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    pub name: Arc<str>,
    /// How many teams of this kind a match has. With more than one they are called `NAME_1`, `NAME_2` ….
    pub count: usize,
    pub min: Schedule,
    pub max: usize,
    pub age: Age,
    pub roles: Vec<Role>,
    pub(crate) position: Position,
}

/// How many players of a team have a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    pub name: Arc<str>,
    pub min: usize,
    pub max: usize,
}

/// One team of a match.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) name: Arc<str>,
    /// The team that it is one of.
    pub(crate) team: usize,
}

/// A value that changes while players wait. Seconds count from the creation of the ticket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    pub base: Option<f64>,
    /// By `after`.
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub after: f64,
    pub change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    Set(f64),
    /// Adds `by` after each `every` seconds, until `limit`.
    Grow {
        by: f64,
        every: f64,
        limit: f64,
    },
}

impl Schedule {
    pub fn fixed(value: f64) -> Self {
        Self { base: Some(value), steps: Vec::new() }
    }

    /// Returns the value at an age in seconds.
    pub fn at(&self, age: f64) -> Option<f64> {
        let mut value = self.base;
        for (at, step) in self.steps.iter().enumerate() {
            if step.after > age {
                break;
            }
            let until = self.steps.get(at + 1).map_or(age, |next| next.after.min(age));
            value = match step.change {
                Change::Set(value) => Some(value),
                Change::Grow { by, every, limit } => value.map(|value| {
                    let grown = value + by * ((until - step.after) / every).floor();
                    if by < 0.0 { grown.max(limit) } else { grown.min(limit) }
                }),
            };
        }
        value
    }

    /// Returns the ages at which the value changes, at most 10,000.
    pub(crate) fn changes(&self) -> Vec<f64> {
        let mut ages = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            match step.change {
                Change::Set(_) => ages.push(step.after),
                Change::Grow { by, every, limit } => {
                    let start = self.at(step.after).unwrap_or(limit);
                    let until = self.steps.get(at + 1).map_or(f64::INFINITY, |next| next.after);
                    let count = ((limit - start) / by).ceil().clamp(0.0, 10_000.0) as usize;
                    let grown = (1..=count).map(|step_at| step.after + every * step_at as f64);
                    ages.extend(grown.take_while(|age| *age < until));
                }
            }
        }
        ages
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.base.is_none() && self.steps.is_empty()
    }
}

/// Whose waiting time counts for a relaxation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    #[default]
    Oldest,
    Average,
    Youngest,
}

impl Age {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("oldest", Self::Oldest), ("average", Self::Average), ("youngest", Self::Youngest)];
}

/// How the values of a party's players become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Party {
    /// Each player counts with their own value.
    Each,
    #[default]
    Average,
    Min,
    Max,
    /// Of lists: what any player has.
    Union,
    /// Of lists: what all players have.
    Intersection,
}

/// A condition of matches, or an order of candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub name: Arc<str>,
    pub kind: RuleKind,
    pub party: Party,
    pub age: Age,
    pub min: Schedule,
    pub max: Schedule,
    /// Of latency: how far apart the players' latencies may be.
    pub max_distance: Schedule,
    /// A reference that is a number.
    pub reference: Schedule,
    /// 1 while the rule is off.
    pub off: Schedule,
    /// Whether a compound rule names it. It then counts only there.
    pub is_part: bool,
    pub(crate) position: Position,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RuleKind {
    /// Compares each value with the reference. Without one, all values are equal (`=`) or all differ (`!=`).
    Comparison {
        measurements: Vec<Expression>,
        operator: Operator,
        reference: Option<Reference>,
    },
    /// Each value is `min` to `max` away from the reference.
    Distance {
        measurements: Vec<Expression>,
        reference: Reference,
    },
    /// Numbers: the largest and the smallest are at most `max` apart. Texts: at most `max` + 1 different ones.
    BatchDistance {
        attribute: usize,
    },
    Collection {
        measurements: Vec<Expression>,
        operation: CollectionOperation,
        reference: Option<Reference>,
    },
    /// All players have at most `max` milliseconds to a region that they share.
    Latency {
        distance_from: LatencyReference,
    },
    Sort {
        by: SortBy,
        attribute: usize,
        key: MapKey,
        is_descending: bool,
    },
    Compound {
        statement: Statement,
    },
    /// The sum over all players is `min` to `max`.
    Total {
        attribute: usize,
    },
    /// The largest parties of the teams differ by at most `max` players.
    PremadeSimilarity,
    /// No player's list has the id of another one.
    BlockList {
        attribute: usize,
        scope: Scope,
    },
}

impl RuleKind {
    /// Returns its `type` in the document.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Comparison { .. } => "comparison",
            Self::Distance { .. } => "distance",
            Self::BatchDistance { .. } => "batch-distance",
            Self::Collection { .. } => "collection",
            Self::Latency { .. } => "latency",
            Self::Sort { by: SortBy::Value, .. } => "absolute-sort",
            Self::Sort { by: SortBy::Distance, .. } => "distance-sort",
            Self::Compound { .. } => "compound",
            Self::Total { .. } => "total",
            Self::PremadeSimilarity => "premade-similarity",
            Self::BlockList { .. } => "block-list",
        }
    }

    /// Calls `found` with every attribute that the rule reads.
    pub(crate) fn attributes(&self, found: &mut impl FnMut(usize)) {
        let (measurements, reference) = match self {
            Self::Comparison { measurements, reference, .. }
            | Self::Collection { measurements, reference, .. } => (measurements, reference.as_ref()),
            Self::Distance { measurements, reference } => (measurements, Some(reference)),
            Self::BatchDistance { attribute }
            | Self::Sort { attribute, .. }
            | Self::Total { attribute }
            | Self::BlockList { attribute, .. } => return found(*attribute),
            Self::Latency { .. } | Self::Compound { .. } | Self::PremadeSimilarity => return,
        };
        measurements.iter().for_each(|measurement| measurement.attributes(found));
        if let Some(Reference::Expression(expression)) = reference {
            expression.attributes(found);
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    /// The number in [`Rule::reference`].
    Number,
    Texts(Vec<Arc<str>>),
    Expression(Expression),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

impl Operator {
    pub(crate) const WORDS: &'static [(&'static str, Self)] = &[
        ("<", Self::Less),
        ("<=", Self::LessOrEqual),
        ("=", Self::Equal),
        ("!=", Self::NotEqual),
        (">=", Self::GreaterOrEqual),
        (">", Self::Greater),
    ];

    pub(crate) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, operator)| *operator == self).map_or("?", |(word, _)| word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionOperation {
    /// Counts the values that all lists have.
    Intersection,
    /// Counts the lists that have the reference, or the texts equal to it.
    Contains,
    /// Counts, for each list, the values that the reference has too.
    ReferenceIntersectionCount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatencyReference {
    #[default]
    Min,
    Average,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    Value,
    /// The distance from the oldest ticket.
    Distance,
}

/// Which entry of a number map counts. The oldest ticket chooses it for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKey {
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Match,
    Team,
}

/// A combination of rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    Rule(usize),
    And(Vec<Self>),
    Or(Vec<Self>),
    Not(Box<Self>),
    Xor(Vec<Self>),
}

/// What makes one match better than another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// The attribute whose averages are to be equal in all teams.
    pub attribute: Option<usize>,
    /// Lost per unit between the strongest and the weakest team.
    pub balance: f64,
    /// Lost per unit between the strongest and the weakest player.
    pub spread: f64,
    /// Lost per millisecond of average latency in the best region.
    pub latency: f64,
    /// Won per second that the oldest ticket has waited.
    pub wait: f64,
}

impl Quality {
    /// Returns whether the region in which a match is made changes more of its quality than the balance, which swaps mend.
    pub(crate) fn differs_between_regions(&self) -> bool {
        self.latency > 0.0 || self.spread > 0.0
    }
}

impl RuleSet {
    /// Returns the most players of a match.
    pub fn max_players(&self) -> usize {
        self.slots.iter().map(|slot| self.teams[slot.team].max).sum()
    }

    /// Returns the fewest players of a match whose oldest ticket has this age in seconds.
    pub fn min_players(&self, age: f64) -> usize {
        self.slots.iter().map(|slot| self.teams[slot.team].min_at(age)).sum()
    }

    /// Returns the names of the rules that read an attribute, and of the other settings that do.
    pub(crate) fn readers(&self, attribute: usize) -> Vec<Arc<str>> {
        let reads = |rule: &&Rule| {
            let mut reads = false;
            rule.kind.attributes(&mut |at| reads |= at == attribute);
            reads
        };
        let mut readers: Vec<Arc<str>> =
            self.rules.iter().filter(reads).map(|rule| rule.name.clone()).collect();
        let others = [("role_attribute", self.role_attribute), ("quality", self.quality.attribute)];
        readers
            .extend(others.iter().filter(|(_, at)| *at == Some(attribute)).map(|(name, _)| Arc::from(*name)));
        readers
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<usize> {
        self.attributes.iter().position(|attribute| &*attribute.name == name)
    }

    /// Returns the teams of a match that a name stands for: one, or all of a team with a count.
    pub(crate) fn slots_named(&self, name: &str) -> Vec<usize> {
        let is_meant = |slot: &Slot| &*slot.name == name || &*self.teams[slot.team].name == name;
        self.slots.iter().enumerate().filter(|(_, slot)| is_meant(slot)).map(|(at, _)| at).collect()
    }

    /// Returns the rules that a match must pass by themselves.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = (usize, &Rule)> {
        let is_condition = |rule: &Rule| !rule.is_part && !matches!(rule.kind, RuleKind::Sort { .. });
        self.rules.iter().enumerate().filter(move |(_, rule)| is_condition(rule))
    }
}

impl Team {
    pub(crate) fn min_at(&self, age: f64) -> usize {
        self.min.at(age).map_or(self.max, |min| min.max(0.0) as usize)
    }
}

impl Rule {
    pub(crate) fn is_off(&self, age: f64) -> bool {
        self.off.at(age).is_some_and(|off| off > 0.0)
    }

    /// Returns whether two tickets are enough to judge the rule: more tickets only break it further.
    pub(crate) fn is_pairwise(&self, rules: &RuleSet) -> bool {
        let bounds = self.lasting_bounds(rules);
        bounds.min || bounds.max
    }

    /// Returns whether the lower limit counts for two tickets too.
    pub(crate) fn is_min_pairwise(&self) -> bool {
        !matches!(
            self.kind,
            RuleKind::Collection { operation: CollectionOperation::Contains, .. }
                | RuleKind::BatchDistance { .. }
        )
    }

    pub(crate) fn schedules(&self) -> [(&'static str, &Schedule); 5] {
        [
            ("min", &self.min),
            ("max", &self.max),
            ("max_distance", &self.max_distance),
            ("reference", &self.reference),
            ("off", &self.off),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_takes_the_latest_step_and_grows_to_its_limit() {
        let steps = vec![
            Step { after: 10.0, change: Change::Set(100.0) },
            Step { after: 20.0, change: Change::Grow { by: 10.0, every: 2.0, limit: 125.0 } },
            Step { after: 60.0, change: Change::Set(500.0) },
        ];
        let schedule = Schedule { base: Some(50.0), steps };
        let at = |age| schedule.at(age).unwrap();
        assert_eq!(
            [0.0, 9.9, 10.0, 21.9, 22.0, 24.0, 26.0, 59.0, 60.0].map(at),
            [50.0, 50.0, 100.0, 100.0, 110.0, 120.0, 125.0, 125.0, 500.0]
        );
        assert_eq!(schedule.changes(), [10.0, 22.0, 24.0, 26.0, 60.0]);
    }
}
