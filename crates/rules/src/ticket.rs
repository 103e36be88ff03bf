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
    /// The highest latency of its players to each region that all of them have.
    pub(crate) latency: Vec<(Arc<str>, f64)>,
    /// Its number attributes (average of the players), to search by.
    pub(crate) averages: Vec<f64>,
    /// Whether one of its players is in another ticket of the pool too.
    pub(crate) shares_player: bool,
    /// Breaks ties in the same way for the same seed.
    pub(crate) tie: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: Arc<str>,
    /// One per attribute of the rule set.
    pub(crate) values: Vec<Value>,
    pub(crate) latency: BTreeMap<Arc<str>, f64>,
}

impl Candidate {
    pub(crate) fn age(&self, now: i64) -> f64 {
        now.saturating_sub(self.created).max(0) as f64 / 1000.0
    }

    pub(crate) fn latency_to(&self, region: &str) -> Option<f64> {
        self.latency.binary_search_by(|(name, _)| (**name).cmp(region)).ok().map(|at| self.latency[at].1)
    }
}

impl Ticket {
    /// Checks that a rule set can match this ticket at all: its size, and that every attribute is there with its type.
    pub fn check(&self, rules: &RuleSet) -> Result<(), Refusal> {
        self.prepare(rules, 0).map(drop)
    }

    pub(crate) fn prepare(&self, rules: &RuleSet, seed: u64) -> Result<Candidate, Refusal> {
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
            players.push(Member { id: player.id.clone(), values, latency: player.latency.clone() });
        }
        let average = |attribute: usize| {
            let values = players.iter().map(|player: &Member| number(&player.values[attribute]));
            values.sum::<f64>() / players.len() as f64
        };
        let averages = (0..rules.attributes.len()).map(average).collect();
        Ok(Candidate {
            id: self.id.clone(),
            created: self.created,
            latency: common_latency(&players),
            averages,
            shares_player: false,
            tie: tie(seed, &self.id),
            players,
        })
    }
}

fn common_latency(players: &[Member]) -> Vec<(Arc<str>, f64)> {
    let Some((first, others)) = players.split_first() else { return Vec::new() };
    let worst = |region: &Arc<str>, latency: f64| {
        others.iter().try_fold(latency, |worst, player| Some(player.latency.get(region)?.max(worst)))
    };
    let regions = first.latency.iter().filter(|(_, latency)| latency.is_finite());
    regions.filter_map(|(region, latency)| Some((region.clone(), worst(region, *latency)?))).collect()
}

pub(crate) fn number(value: &Value) -> f64 {
    if let Value::Number(number) = value { *number } else { 0.0 }
}

/// Mixes the seed with an id (FNV-1a, then a finalizer).
fn tie(seed: u64, id: &str) -> u64 {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}
