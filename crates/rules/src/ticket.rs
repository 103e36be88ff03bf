//! Tickets: one player, or a party that stays together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::{AttributeKind, RuleSet, Value};

/// A ticket as it is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ticket {
    pub id: Arc<str>,
    /// Milliseconds since any fixed moment.
    pub created: i64,
    pub players: Vec<Player>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Player {
    pub id: Arc<str>,
    pub attributes: BTreeMap<Arc<str>, Value>,
    /// Milliseconds to each region.
    pub latency: BTreeMap<Arc<str>, f64>,
}

/// Why a ticket can never match under a rule set, with any other tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub ticket: Arc<str>,
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ticket, self.reason)
    }
}

/// A ticket whose values have the types of the rule set's attributes.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: Arc<str>,
    pub(crate) created: i64,
    pub(crate) players: Vec<Member>,
    /// The highest latency of its players to each region of the pool. Infinity if one of them has none.
    pub(crate) latency: Vec<f64>,
    /// Its number attributes (average of the players), to search by.
    pub(crate) averages: Vec<f64>,
    /// Whether one of its players may be in another ticket of the pool too.
    pub(crate) shares_player: bool,
    /// Breaks ties in the same way for the same seed.
    pub(crate) tie: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: Arc<str>,
    /// One per attribute of the rule set.
    pub(crate) values: Vec<Value>,
    /// One per region of the pool. Infinity if there is none.
    pub(crate) latency: Vec<f64>,
}

/// The regions of a pool, by name. Candidates know them by their index.
#[derive(Debug, Default)]
pub(crate) struct Regions(Vec<Arc<str>>);

impl Regions {
    pub(crate) fn of(tickets: &[Ticket]) -> Self {
        let mut regions = Self::default();
        for player in tickets.iter().flat_map(|ticket| &ticket.players) {
            let mut at = 0;
            for name in player.latency.keys() {
                while regions.0.get(at).is_some_and(|known| known < name) {
                    at += 1;
                }
                if regions.0.get(at) != Some(name) {
                    regions.0.insert(at, name.clone());
                }
            }
        }
        regions
    }

    pub(crate) fn names(&self) -> &[Arc<str>] {
        &self.0
    }

    /// Returns the latency to each region. Both have the regions in the same order.
    fn latency(&self, by_name: &BTreeMap<Arc<str>, f64>) -> Vec<f64> {
        let known = |latency: &f64| if latency.is_finite() { *latency } else { f64::INFINITY };
        // No region has a name that the pool does not know, so both have the same.
        if by_name.len() == self.0.len() {
            return by_name.values().map(known).collect();
        }
        let mut entries = by_name.iter().peekable();
        let latency = |region: &Arc<str>| {
            while entries.next_if(|(name, _)| *name < region).is_some() {}
            let found = entries.next_if(|(name, _)| *name == region);
            found.map_or(f64::INFINITY, |(_, latency)| known(latency))
        };
        self.0.iter().map(latency).collect()
    }
}

impl Candidate {
    pub(crate) fn age(&self, now: i64) -> f64 {
        now.saturating_sub(self.created).max(0) as f64 / 1000.0
    }
}

impl Ticket {
    /// Checks that a rule set can match this ticket at all: its size, and that every attribute is there with its type.
    pub fn check(&self, rules: &RuleSet) -> Result<(), Refusal> {
        self.prepare(rules, &Regions::default(), 0).map(drop)
    }

    pub(crate) fn prepare(
        &self,
        rules: &RuleSet,
        regions: &Regions,
        seed: u64,
    ) -> Result<Candidate, Refusal> {
        let refuse = |reason: String| Refusal { ticket: self.id.clone(), reason };
        if self.players.is_empty() {
            return Err(refuse("has no players".to_owned()));
        }
        if self.players.len() > rules.max_party {
            return Err(refuse(format!(
                "a party of {} is larger than {}",
                self.players.len(),
                rules.max_party
            )));
        }
        let mut players = Vec::with_capacity(self.players.len());
        for player in &self.players {
            let values =
                rules.attributes.iter().map(|attribute| match player.attributes.get(&attribute.name) {
                    Some(Value::Number(number))
                        if attribute.kind == AttributeKind::Number && !number.is_finite() =>
                    {
                        Err(refuse(format!(
                            "player {}: {} is not a finite number",
                            player.id, attribute.name
                        )))
                    }
                    Some(value) if value.kind() == attribute.kind => Ok(value.clone()),
                    Some(value) => Err(refuse(format!(
                        "player {}: {} must be a {}, and is a {}",
                        player.id,
                        attribute.name,
                        attribute.kind.word(),
                        value.kind().word()
                    ))),
                    None => attribute.default.clone().ok_or_else(|| {
                        refuse(format!(
                            "player {}: {} is missing and has no default",
                            player.id, attribute.name
                        ))
                    }),
                });
            let values = values.collect::<Result<_, _>>()?;
            players.push(Member { id: player.id.clone(), values, latency: regions.latency(&player.latency) });
        }
        let average = |attribute: usize| {
            let values = players.iter().map(|player: &Member| number(&player.values[attribute]));
            values.sum::<f64>() / players.len() as f64
        };
        let averages = (0..rules.attributes.len()).map(average).collect();
        Ok(Candidate {
            id: self.id.clone(),
            created: self.created,
            latency: worst_latency(&players),
            averages,
            shares_player: false,
            tie: hash(seed, &self.id),
            players,
        })
    }
}

/// Returns the highest latency of the players to each region.
fn worst_latency(players: &[Member]) -> Vec<f64> {
    let Some((first, others)) = players.split_first() else { return Vec::new() };
    let mut worst = first.latency.clone();
    for player in others {
        worst.iter_mut().zip(&player.latency).for_each(|(worst, latency)| *worst = worst.max(*latency));
    }
    worst
}

pub(crate) fn number(value: &Value) -> f64 {
    if let Value::Number(number) = value { *number } else { 0.0 }
}

/// Hashes an id (FNV-1a, then a finalizer).
pub(crate) fn hash(seed: u64, id: &str) -> u64 {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}
