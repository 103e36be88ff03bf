//! Random players and tickets, and what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use rules::{Player, Ticket, Value};

pub(crate) const NOW: i64 = 100_000;
pub(crate) const REGIONS: [&str; 2] = ["eu", "us"];

/// A lineup as the reference sees it: the tickets of each team.
pub(crate) type Teams<'a> = Vec<Vec<&'a Ticket>>;

/// How the numbers of a party count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NumberParty {
    Each,
    Average,
    Min,
    Max,
}

/// How the lists of a party count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListParty {
    Each,
    Union,
    Intersection,
}

impl NumberParty {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::Average => "avg",
            Self::Min => "min",
            Self::Max => "max",
        }
    }

    /// Returns a number for each player of a ticket.
    pub(crate) fn values(self, ticket: &Ticket, name: &str) -> Vec<f64> {
        let own: Vec<f64> = ticket.players.iter().map(|player| number(player, name)).collect();
        let of_all = match self {
            Self::Each => return own,
            Self::Average => mean(&own),
            Self::Min => own.iter().copied().fold(f64::MAX, f64::min),
            Self::Max => own.iter().copied().fold(f64::MIN, f64::max),
        };
        vec![of_all; own.len()]
    }

    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![Just(Self::Each), Just(Self::Average), Just(Self::Min), Just(Self::Max)]
    }
}

impl ListParty {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::Union => "union",
            Self::Intersection => "intersection",
        }
    }

    /// Returns the lists of a ticket: one for each player, or one for all.
    pub(crate) fn lists(self, ticket: &Ticket, name: &str) -> Vec<BTreeSet<Arc<str>>> {
        let own = ticket.players.iter().map(|player| texts(player, name).iter().cloned().collect());
        match self {
            Self::Each => own.collect(),
            Self::Union => own.reduce(|one: BTreeSet<_>, two| &one | &two).into_iter().collect(),
            Self::Intersection => own.reduce(|one, two| &one & &two).into_iter().collect(),
        }
    }

    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![Just(Self::Each), Just(Self::Union), Just(Self::Intersection)]
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub(crate) fn spread(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN, f64::max) - values.iter().copied().fold(f64::MAX, f64::min)
}

pub(crate) fn number(player: &Player, name: &str) -> f64 {
    match player.attributes.get(name) {
        Some(Value::Number(number)) => *number,
        _ => panic!("{name}"),
    }
}

pub(crate) fn text<'a>(player: &'a Player, name: &str) -> &'a str {
    match player.attributes.get(name) {
        Some(Value::Text(text)) => text,
        _ => panic!("{name}"),
    }
}

pub(crate) fn texts<'a>(player: &'a Player, name: &str) -> &'a [Arc<str>] {
    match player.attributes.get(name) {
        Some(Value::TextList(texts)) => texts,
        _ => panic!("{name}"),
    }
}

pub(crate) fn map<'a>(player: &'a Player, name: &str) -> &'a BTreeMap<Arc<str>, f64> {
    match player.attributes.get(name) {
        Some(Value::NumberMap(map)) => map,
        _ => panic!("{name}"),
    }
}

pub(crate) fn size(team: &[&Ticket]) -> usize {
    team.iter().map(|ticket| ticket.players.len()).sum()
}

/// Returns the waiting time of a ticket in seconds.
pub(crate) fn age(ticket: &Ticket) -> f64 {
    (NOW - ticket.created) as f64 / 1000.0
}

fn player() -> impl Strategy<Value = Player> {
    let list = |words: &'static [&'static str]| proptest::sample::subsequence(words, 0..=words.len());
    let latency = || proptest::option::weighted(0.8, 10..120_u32);
    (
        0..60_u32,
        0..10_u32,
        prop_oneof![Just("a"), Just("b")],
        list(&["x", "y", "z"]),
        list(&["tank", "other"]),
        list(&["p0", "p3", "p5"]),
        proptest::collection::btree_map(prop_oneof![Just("forest"), Just("city")], 0..5_u32, 0..=2),
        (latency(), latency()),
    )
        .prop_map(|(skill, level, mode, maps, roles, blocked, scores, (eu, us))| {
            let texts = |words: Vec<&str>| Value::TextList(words.into_iter().map(Arc::from).collect());
            let scores = scores.into_iter().map(|(name, score)| (name.into(), score.into()));
            let attributes: BTreeMap<Arc<str>, Value> = [
                ("skill".into(), Value::Number(skill.into())),
                ("level".into(), Value::Number(level.into())),
                ("mode".into(), Value::Text(mode.into())),
                ("maps".into(), texts(maps)),
                ("roles".into(), texts(roles)),
                ("blocked".into(), texts(blocked)),
                ("scores".into(), Value::NumberMap(scores.collect())),
            ]
            .into();
            let latency = REGIONS
                .into_iter()
                .zip([eu, us])
                .filter_map(|(region, latency)| Some((region.into(), f64::from(latency?))));
            Player { id: "".into(), attributes, latency: latency.collect() }
        })
}

pub(crate) fn tickets() -> impl Strategy<Value = Vec<Ticket>> {
    let ticket = (0..30_i64, proptest::collection::vec(player(), 1..=2), proptest::bool::weighted(0.7));
    proptest::collection::vec(ticket, 1..7).prop_map(|tickets| {
        let mut number = 0;
        let mut made = Vec::new();
        for (at, (age, mut players, is_solo)) in tickets.into_iter().enumerate() {
            players.truncate(if is_solo { 1 } else { 2 });
            for player in &mut players {
                // Now and then the same player waits twice.
                player.id = format!("p{}", number % 8).into();
                number += 1;
            }
            made.push(Ticket { id: format!("t{at}").into(), created: NOW - age * 1000, players });
        }
        made
    })
}

/// Tickets of `players` players each, all of them different.
pub(crate) fn equal_tickets(players: usize) -> impl Strategy<Value = Vec<Ticket>> {
    let ticket = (0..30_i64, proptest::collection::vec(player(), players));
    proptest::collection::vec(ticket, 2..9).prop_map(|tickets| {
        let made = tickets.into_iter().enumerate().map(|(at, (age, mut players))| {
            for (member, player) in players.iter_mut().enumerate() {
                player.id = format!("t{at}/{member}").into();
            }
            Ticket { id: format!("t{at}").into(), created: NOW - age * 1000, players }
        });
        made.collect()
    })
}
