//! Rules of the generated sets, each with its text and its meaning written a second time.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rules::{Player, Ticket};

use crate::players::{ListParty, NumberParty, REGIONS, Teams, mean, number, size, spread, text, texts};
use crate::schedule::Relaxed;

#[derive(Clone, Debug)]
pub(crate) enum Condition {
    Window { party: NumberParty, limit: Relaxed },
    TeamAverages { max: u32 },
    EqualSizes,
    SameMode,
    Latency { limit: Relaxed },
    LatencyDistance { max: Option<u32>, distance: u32, relaxed: u32, from_average: bool },
    MinLevel { min: u32 },
    LevelTotal { min: Option<u32>, max: Option<u32> },
    CommonMaps { party: ListParty, min: u32 },
    MapCount { party: ListParty, min: u32, max: Option<u32> },
    MapOverlap { party: ListParty, min: u32, max: u32 },
    BlockedIds,
    Blocked { in_team: bool },
    Premades { max: usize },
    Either { spread: u32, level: u32 },
    OneOf { spread: u32, level: u32 },
    NotNear { spread: u32 },
    Median { party: NumberParty, min: u32 },
    Deviation { party: NumberParty, in_team: bool, max: u32 },
}

const SKILLS: &str = "teams[*].players.attributes[skill]";
const MAPS: &str = "measurements = \"flatten(teams[*].players.attributes[maps])\"";

/// Two rules that compound rules combine, named with a prefix: `near`, the spread of skill, and `high`, the lowest level.
fn parts(prefix: &str, spread: u32, level: u32) -> String {
    format!(
        "[rules.{prefix}near]\ntype = \"distance\"\nparty = \"each\"\nmeasurements = \"max(flatten({SKILLS}))\"\n\
         reference = \"min(flatten({SKILLS}))\"\nmax = {spread}\n[rules.{prefix}high]\ntype = \"comparison\"\nparty = \"each\"\n\
         measurements = \"min(flatten(teams[*].players.attributes[level]))\"\noperation = \">\"\nreference = {level}\n"
    )
}

fn bounds(min: Option<u32>, max: Option<u32>) -> String {
    let line =
        |name: &str, value: Option<u32>| value.map_or(String::new(), |value| format!("{name} = {value}\n"));
    line("min", min) + &line("max", max)
}

fn is_within(value: f64, min: Option<u32>, max: Option<u32>) -> bool {
    min.is_none_or(|min| value >= f64::from(min) - 1e-9)
        && max.is_none_or(|max| value <= f64::from(max) + 1e-9)
}

impl Condition {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Window { party, limit } => format!(
                "[rules.window]\ntype = \"batch-distance\"\nattribute = \"skill\"\nparty = \"{}\"\n{}",
                party.word(),
                limit.text()
            ),
            Self::TeamAverages { max } => format!(
                "[rules.averages]\ntype = \"distance\"\nparty = \"each\"\nmeasurements = \"avg({SKILLS})\"\n\
                 reference = \"avg(flatten({SKILLS}))\"\nmax = {max}\n"
            ),
            Self::EqualSizes => "[rules.sizes]\ntype = \"comparison\"\nmeasurements = \"count(teams[*].players)\"\noperation = \"=\"\n".to_owned(),
            Self::SameMode => "[rules.mode]\ntype = \"batch-distance\"\nattribute = \"mode\"\n".to_owned(),
            Self::Latency { limit } => format!("[rules.latency]\ntype = \"latency\"\n{}", limit.text()),
            Self::LatencyDistance { max, distance, relaxed, from_average } => format!(
                "[rules.similar-latency]\ntype = \"latency\"\n{}max_distance = {distance}\ndistance_from = \"{}\"\n\
                 relax = [{{ after = 12, max_distance = {relaxed} }}]\n",
                bounds(None, *max),
                if *from_average { "avg" } else { "min" }
            ),
            Self::MinLevel { min } => format!(
                "[rules.level]\ntype = \"comparison\"\nparty = \"min\"\nmeasurements = \"flatten(teams[*].players.attributes[level])\"\n\
                 operation = \">=\"\nreference = {min}\n"
            ),
            Self::LevelTotal { min, max } => {
                format!("[rules.total]\ntype = \"total\"\nattribute = \"level\"\n{}", bounds(*min, *max))
            }
            Self::CommonMaps { party, min } => format!(
                "[rules.maps]\ntype = \"collection\"\n{MAPS}\nparty = \"{}\"\noperation = \"intersection\"\nmin = {min}\n",
                party.word()
            ),
            Self::MapCount { party, min, max } => format!(
                "[rules.map-count]\ntype = \"collection\"\n{MAPS}\nparty = \"{}\"\noperation = \"contains\"\nreference = \"x\"\n{}",
                party.word(),
                bounds(Some(*min), *max)
            ),
            Self::MapOverlap { party, min, max } => format!(
                "[rules.map-overlap]\ntype = \"collection\"\n{MAPS}\nparty = \"{}\"\noperation = \"reference_intersection_count\"\n\
                 reference = [\"x\", \"y\"]\nmin = {min}\nmax = {max}\n",
                party.word()
            ),
            Self::BlockedIds => "[rules.blocked-ids]\ntype = \"collection\"\noperation = \"reference_intersection_count\"\n\
                 measurements = \"flatten(teams[*].players.attributes[blocked])\"\nreference = \"flatten(teams[*].players[playerId])\"\n\
                 max = 0\n"
                .to_owned(),
            Self::Blocked { in_team } => format!(
                "[rules.blocked]\ntype = \"block-list\"\nattribute = \"blocked\"\nscope = \"{}\"\n",
                if *in_team { "team" } else { "match" }
            ),
            Self::Premades { max } => format!("[rules.premades]\ntype = \"premade-similarity\"\nmax = {max}\n"),
            Self::Either { spread, level } => {
                parts("", *spread, *level) + "[rules.either]\ntype = \"compound\"\nstatement = \"or(near, high)\"\n"
            }
            Self::OneOf { spread, level } => {
                parts("one-", *spread, *level)
                    + "[rules.one-of]\ntype = \"compound\"\nstatement = \"xor(one-near, one-high)\"\n"
            }
            Self::NotNear { spread } => {
                parts("not-", *spread, 8)
                    + "[rules.not]\ntype = \"compound\"\nstatement = \"and(not(not-near), not(not-high))\"\n"
            }
            Self::Median { party, min } => format!(
                "[rules.median]\ntype = \"comparison\"\nparty = \"{}\"\nmeasurements = \"median({SKILLS})\"\n\
                 operation = \">=\"\nreference = {min}\n",
                party.word()
            ),
            Self::Deviation { party, in_team, max } => format!(
                "[rules.deviation]\ntype = \"comparison\"\nparty = \"{}\"\nmeasurements = \"stddev({})\"\noperation = \"<=\"\n\
                 reference = {max}.37\n",
                party.word(),
                if *in_team { SKILLS.to_owned() } else { format!("flatten({SKILLS})") }
            ),
        }
    }

    pub(crate) fn holds(&self, teams: &Teams<'_>) -> bool {
        let tickets: Vec<&Ticket> = teams.iter().flatten().copied().collect();
        let players: Vec<&Player> = tickets.iter().flat_map(|ticket| &ticket.players).collect();
        let of_team = |team: &[&Ticket], party: NumberParty| -> Vec<f64> {
            team.iter().flat_map(|ticket| party.values(ticket, "skill")).collect()
        };
        let filled = || teams.iter().filter(|team| !team.is_empty());
        let lists = |party: ListParty| tickets.iter().flat_map(move |ticket| party.lists(ticket, "maps"));
        let skills = of_team(&tickets, NumberParty::Each);
        let is_near = |most: u32| spread(&skills) <= f64::from(most) + 1e-9;
        let is_high = |level: u32| players.iter().all(|player| number(player, "level") > f64::from(level));
        match self {
            Self::Window { party, limit } => {
                limit.limit(&tickets).is_none_or(|max| spread(&of_team(&tickets, *party)) <= max + 1e-9)
            }
            Self::TeamAverages { max } => {
                let all = mean(&skills);
                let distance = |team: &Vec<&Ticket>| (mean(&of_team(team, NumberParty::Each)) - all).abs();
                filled().all(|team| distance(team) <= f64::from(*max) + 1e-9)
            }
            Self::EqualSizes => teams.iter().map(|team| size(team)).collect::<BTreeSet<_>>().len() == 1,
            Self::SameMode => {
                players.iter().map(|player| text(player, "mode")).collect::<BTreeSet<_>>().len() == 1
            }
            Self::Latency { .. } | Self::LatencyDistance { .. } => {
                !self.needs_region(&tickets)
                    || REGIONS.iter().any(|region| self.admits_region(region, &tickets))
            }
            Self::MinLevel { min } => players.iter().all(|player| number(player, "level") >= f64::from(*min)),
            Self::LevelTotal { min, max } => {
                is_within(players.iter().map(|player| number(player, "level")).sum(), *min, *max)
            }
            Self::CommonMaps { party, min } => {
                let common = lists(*party).reduce(|one, two| &one & &two);
                common.is_some_and(|common| common.len() >= *min as usize)
            }
            Self::MapCount { party, min, max } => {
                is_within(lists(*party).filter(|list| list.contains("x")).count() as f64, Some(*min), *max)
            }
            Self::MapOverlap { party, min, max } => lists(*party).all(|list| {
                let overlap = ["x", "y"].iter().filter(|map| list.contains(**map)).count();
                (*min..=*max).contains(&(overlap as u32))
            }),
            Self::BlockedIds => {
                players.iter().all(|one| players.iter().all(|two| !texts(one, "blocked").contains(&two.id)))
            }
            Self::Blocked { in_team } => {
                let groups: Vec<Vec<&Player>> = if *in_team {
                    teams
                        .iter()
                        .map(|team| team.iter().flat_map(|ticket| &ticket.players).collect())
                        .collect()
                } else {
                    vec![players]
                };
                groups.iter().all(|group| {
                    group.iter().all(|one| {
                        group.iter().all(|two| one.id == two.id || !texts(one, "blocked").contains(&two.id))
                    })
                })
            }
            Self::Premades { max } => {
                let largest =
                    teams.iter().filter_map(|team| team.iter().map(|ticket| ticket.players.len()).max());
                let largest: Vec<usize> = largest.collect();
                largest.iter().max().unwrap_or(&0) - largest.iter().min().unwrap_or(&0) <= *max
            }
            Self::Either { spread, level } => is_near(*spread) || is_high(*level),
            Self::OneOf { spread, level } => is_near(*spread) != is_high(*level),
            Self::NotNear { spread } => !is_near(*spread) && !is_high(8),
            Self::Median { party, min } => filled().all(|team| {
                let mut values = of_team(team, *party);
                values.sort_by(f64::total_cmp);
                let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
                (low + high) / 2.0 >= f64::from(*min)
            }),
            Self::Deviation { party, in_team, max } => {
                let deviation = |values: Vec<f64>| {
                    let squares: Vec<f64> = values.iter().map(|value| value * value).collect();
                    (mean(&squares) - mean(&values).powi(2)).max(0.0).sqrt()
                };
                // Whole numbers have no such deviation, so the two ways to compute it need no tolerance.
                let is_low = |values| deviation(values) <= f64::from(*max) + 0.37;
                if *in_team {
                    filled().all(|team| is_low(of_team(team, *party)))
                } else {
                    is_low(of_team(&tickets, *party))
                }
            }
        }
    }

    /// Returns whether a match of these tickets can be in a region. Other rules than those on latency do not mind.
    pub(crate) fn admits_region(&self, region: &str, tickets: &[&Ticket]) -> bool {
        let players = || tickets.iter().flat_map(|ticket| &ticket.players);
        let latencies: Option<Vec<f64>> =
            players().map(|player| player.latency.get(region).copied()).collect();
        let Some(latencies) = latencies else { return false };
        let is_below = |max: f64| latencies.iter().all(|latency| *latency <= max);
        match self {
            Self::Latency { limit } => limit.limit(tickets).is_none_or(is_below),
            Self::LatencyDistance { max, distance, relaxed, from_average } => {
                let oldest = crate::schedule::Age::Oldest.of(tickets);
                let distance = f64::from(if oldest >= 12.0 { *relaxed } else { *distance });
                let lowest = latencies.iter().copied().fold(f64::MAX, f64::min);
                let from = if *from_average { mean(&latencies) } else { lowest };
                max.is_none_or(|max| is_below(f64::from(max)))
                    && latencies.iter().all(|latency| (latency - from).abs() <= distance)
            }
            _ => true,
        }
    }

    /// Returns whether the rule is on, so that a match needs a region.
    pub(crate) fn needs_region(&self, tickets: &[&Ticket]) -> bool {
        match self {
            Self::Latency { limit } => limit.limit(tickets).is_some(),
            Self::LatencyDistance { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let of_latency = || {
            let max = proptest::option::of(40..110_u32);
            (max, 0..40_u32, 40..80_u32, any::<bool>()).prop_map(|(max, distance, relaxed, from_average)| {
                Self::LatencyDistance { max, distance, relaxed, from_average }
            })
        };
        prop_oneof![
            (NumberParty::any(), Relaxed::any(5, 40))
                .prop_map(|(party, limit)| Self::Window { party, limit }),
            (1..12_u32).prop_map(|max| Self::TeamAverages { max }),
            Just(Self::EqualSizes),
            Just(Self::SameMode),
            Relaxed::any(20, 110).prop_map(|limit| Self::Latency { limit }),
            of_latency(),
            (1..6_u32).prop_map(|min| Self::MinLevel { min }),
            (proptest::option::of(3..20_u32), 10..40_u32, any::<bool>()).prop_map(|(min, more, has_max)| {
                let max = (has_max || min.is_none()).then(|| min.unwrap_or(0) + more);
                Self::LevelTotal { min, max }
            }),
            (ListParty::any(), 1..3_u32).prop_map(|(party, min)| Self::CommonMaps { party, min }),
            (ListParty::any(), 0..3_u32, proptest::option::of(0..2_u32)).prop_map(|(party, min, more)| {
                Self::MapCount { party, min, max: more.map(|more| min + more) }
            }),
            (ListParty::any(), 0..2_u32, 0..2_u32).prop_map(|(party, min, more)| Self::MapOverlap {
                party,
                min,
                max: min + more
            }),
            Just(Self::BlockedIds),
            any::<bool>().prop_map(|in_team| Self::Blocked { in_team }),
            (0..2_usize).prop_map(|max| Self::Premades { max }),
            (5..30_u32, 3..8_u32).prop_map(|(spread, level)| Self::Either { spread, level }),
            (5..30_u32, 3..8_u32).prop_map(|(spread, level)| Self::OneOf { spread, level }),
            (5..30_u32).prop_map(|spread| Self::NotNear { spread }),
            (NumberParty::any(), 10..40_u32).prop_map(|(party, min)| Self::Median { party, min }),
            (NumberParty::any(), any::<bool>(), 2..20_u32)
                .prop_map(|(party, in_team, max)| Self::Deviation { party, in_team, max }),
        ]
    }
}
