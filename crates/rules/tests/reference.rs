//! The matcher beside a slow and obvious one, on small random pools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use rules::{Options, Player, RuleSet, Seated, Ticket, Value};

/// A lineup as the reference sees it: the tickets of each team.
type Teams<'a> = Vec<Vec<&'a Ticket>>;

/// Rules of the generated sets, each with its text and its meaning written a second time.
#[derive(Clone, Debug)]
enum Condition {
    Window { max: f64, grown: f64, after: f64 },
    TeamAverages { max: f64 },
    EqualSizes,
    SameMode,
    Latency { max: f64, relaxed: f64, after: f64 },
    MinLevel { min: f64 },
    LevelTotal { max: f64 },
    CommonMaps { min: usize },
    Blocked { in_team: bool },
    Premades { max: usize },
    Either { spread: f64, level: f64 },
    YoungestWindow { max: f64, grown: f64, after: f64 },
}

impl Condition {
    fn text(&self) -> String {
        match self {
            Self::Window { max, grown, after } => format!(
                "[rules.window]\ntype = \"batch-distance\"\nattribute = \"skill\"\nparty = \"each\"\nmax = {max}\n\
                 relax = [{{ after = {after}, max = {grown} }}]\n"
            ),
            Self::YoungestWindow { max, grown, after } => format!(
                "[rules.youngest]\ntype = \"batch-distance\"\nattribute = \"skill\"\nage = \"youngest\"\nmax = {max}\n\
                 relax = [{{ after = {after}, max = {grown} }}]\n"
            ),
            Self::TeamAverages { max } => format!(
                "[rules.averages]\ntype = \"distance\"\nparty = \"each\"\nmeasurements = \"avg(teams[*].players.attributes[skill])\"\n\
                 reference = \"avg(flatten(teams[*].players.attributes[skill]))\"\nmax = {max}\n"
            ),
            Self::EqualSizes => "[rules.sizes]\ntype = \"comparison\"\nmeasurements = \"count(teams[*].players)\"\noperation = \"=\"\n".to_owned(),
            Self::SameMode => "[rules.mode]\ntype = \"batch-distance\"\nattribute = \"mode\"\n".to_owned(),
            Self::Latency { max, relaxed, after } => format!(
                "[rules.latency]\ntype = \"latency\"\nmax = {max}\nrelax = [{{ after = {after}, max = {relaxed} }}]\n"
            ),
            Self::MinLevel { min } => format!(
                "[rules.level]\ntype = \"comparison\"\nparty = \"min\"\nmeasurements = \"flatten(teams[*].players.attributes[level])\"\n\
                 operation = \">=\"\nreference = {min}\n"
            ),
            Self::LevelTotal { max } => format!("[rules.total]\ntype = \"total\"\nattribute = \"level\"\nmax = {max}\n"),
            Self::CommonMaps { min } => format!(
                "[rules.maps]\ntype = \"collection\"\nmeasurements = \"flatten(teams[*].players.attributes[maps])\"\n\
                 operation = \"intersection\"\nmin = {min}\n"
            ),
            Self::Blocked { in_team } => format!(
                "[rules.blocked]\ntype = \"block-list\"\nattribute = \"blocked\"\nscope = \"{}\"\n",
                if *in_team { "team" } else { "match" }
            ),
            Self::Premades { max } => format!("[rules.premades]\ntype = \"premade-similarity\"\nmax = {max}\n"),
            Self::Either { spread, level } => format!(
                "[rules.near]\ntype = \"distance\"\nparty = \"each\"\nmeasurements = \"max(flatten(teams[*].players.attributes[skill]))\"\n\
                 reference = \"min(flatten(teams[*].players.attributes[skill]))\"\nmax = {spread}\n\
                 [rules.high]\ntype = \"comparison\"\nparty = \"each\"\nmeasurements = \"min(flatten(teams[*].players.attributes[level]))\"\n\
                 operation = \">\"\nreference = {level}\n[rules.either]\ntype = \"compound\"\nstatement = \"or(near, high)\"\n"
            ),
        }
    }

    fn holds(&self, teams: &Teams<'_>, now: i64) -> bool {
        let tickets: Vec<&Ticket> = teams.iter().flatten().copied().collect();
        let players: Vec<&Player> = tickets.iter().flat_map(|ticket| &ticket.players).collect();
        let age = |ticket: &&Ticket| (now - ticket.created) as f64 / 1000.0;
        let oldest = tickets.iter().map(age).fold(0.0, f64::max);
        let youngest = tickets.iter().map(age).fold(f64::INFINITY, f64::min);
        let spread = |values: Vec<f64>| {
            values.iter().copied().fold(f64::MIN, f64::max) - values.iter().copied().fold(f64::MAX, f64::min)
        };
        let skills =
            |players: &[&Player]| players.iter().map(|player| number(player, "skill")).collect::<Vec<_>>();
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        match self {
            Self::Window { max, grown, after } => {
                spread(skills(&players)) <= if oldest >= *after { *grown } else { *max } + 1e-9
            }
            Self::YoungestWindow { max, grown, after } => {
                let means =
                    tickets.iter().map(|ticket| mean(skills(&ticket.players.iter().collect::<Vec<_>>())));
                spread(means.collect()) <= if youngest >= *after { *grown } else { *max } + 1e-9
            }
            Self::TeamAverages { max } => {
                let all = mean(skills(&players));
                teams.iter().filter(|team| !team.is_empty()).all(|team| {
                    let members: Vec<&Player> = team.iter().flat_map(|ticket| &ticket.players).collect();
                    (mean(skills(&members)) - all).abs() <= max + 1e-9
                })
            }
            Self::EqualSizes => teams.iter().map(|team| size(team)).collect::<BTreeSet<_>>().len() == 1,
            Self::SameMode => {
                players.iter().map(|player| text(player, "mode")).collect::<BTreeSet<_>>().len() == 1
            }
            Self::Latency { max, relaxed, after } => {
                let max = if oldest >= *after { relaxed } else { max };
                ["eu", "us"].iter().any(|region| {
                    players
                        .iter()
                        .all(|player| player.latency.get(*region).is_some_and(|latency| latency <= max))
                })
            }
            Self::MinLevel { min } => players.iter().all(|player| number(player, "level") >= *min),
            Self::LevelTotal { max } => {
                players.iter().map(|player| number(player, "level")).sum::<f64>() <= max + 1e-9
            }
            Self::CommonMaps { min } => {
                let of = |player: &&Player| texts(player, "maps").iter().cloned().collect::<BTreeSet<_>>();
                let common = players.iter().map(of).reduce(|one, two| &one & &two);
                common.is_some_and(|common| common.len() >= *min)
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
            Self::Either { spread: most, level } => {
                let lowest = players.iter().map(|player| number(player, "level")).fold(f64::MAX, f64::min);
                spread(skills(&players)) <= most + 1e-9 || lowest > *level
            }
        }
    }
}

fn number(player: &Player, name: &str) -> f64 {
    match player.attributes.get(name) {
        Some(Value::Number(number)) => *number,
        _ => panic!("{name}"),
    }
}

fn text<'a>(player: &'a Player, name: &str) -> &'a str {
    match player.attributes.get(name) {
        Some(Value::Text(text)) => text,
        _ => panic!("{name}"),
    }
}

fn texts<'a>(player: &'a Player, name: &str) -> &'a [Arc<str>] {
    match player.attributes.get(name) {
        Some(Value::TextList(texts)) => texts,
        _ => &[],
    }
}

fn size(team: &[&Ticket]) -> usize {
    team.iter().map(|ticket| ticket.players.len()).sum()
}

#[derive(Clone, Debug)]
struct TeamShape {
    name: &'static str,
    count: usize,
    min: usize,
    max: usize,
    /// The fewest players after 20 seconds.
    relaxed: usize,
    has_roles: bool,
}

#[derive(Clone, Debug)]
struct Setup {
    teams: Vec<TeamShape>,
    conditions: Vec<Condition>,
    has_quality: bool,
}

impl Setup {
    fn text(&self) -> String {
        let mut text = "name = \"random\"\nrole_attribute = \"roles\"\n\
            [attributes]\nskill.type = \"number\"\nlevel.type = \"number\"\nmode.type = \"string\"\nmaps.type = \"string-list\"\n\
            roles.type = \"string-list\"\n[attributes.blocked]\ntype = \"string-list\"\ndefault = []\n"
            .to_owned();
        for team in &self.teams {
            let roles =
                if team.has_roles { "roles = { tank = { min = 1, max = 1 } , other = {} }\n" } else { "" };
            text += &format!(
                "[teams.{}]\ncount = {}\nmin = {}\nmax = {}\nrelax = [{{ after = 20, min = {} }}]\n{roles}",
                team.name, team.count, team.min, team.max, team.relaxed
            );
        }
        text.extend(self.conditions.iter().map(Condition::text));
        if self.has_quality {
            text += "[quality]\nattribute = \"skill\"\nbalance = 1\nspread = 0.1\n";
        }
        text
    }

    fn slots(&self) -> Vec<&TeamShape> {
        self.teams.iter().flat_map(|team| std::iter::repeat_n(team, team.count)).collect()
    }

    /// Returns whether teams are a match. Nothing of the crate is used.
    fn is_match(&self, teams: &Teams<'_>, now: i64) -> bool {
        self.follows_rules(teams, now, true)
    }

    /// Returns whether teams follow the rules. Of a match under way the minima do not count.
    fn follows_rules(&self, teams: &Teams<'_>, now: i64, have_minima: bool) -> bool {
        let oldest =
            teams.iter().flatten().map(|ticket| (now - ticket.created) as f64 / 1000.0).fold(0.0, f64::max);
        let fits = |shape: &TeamShape, team: &Vec<&Ticket>| {
            let min = if oldest >= 20.0 { shape.relaxed } else { shape.min };
            let min = if have_minima { min } else { 0 };
            let tanks = team.iter().flat_map(|ticket| &ticket.players);
            // Some player takes the role of the tank, all others have another one.
            let players: Vec<&Player> = tanks.collect();
            let plays = |player: &Player, role: &str| {
                texts(player, "roles").is_empty() || texts(player, "roles").iter().any(|wish| &**wish == role)
            };
            let has_tank = (0..players.len()).any(|tank| {
                plays(players[tank], "tank")
                    && (0..players.len()).all(|other| other == tank || plays(players[other], "other"))
            });
            (min..=shape.max).contains(&size(team)) && (!shape.has_roles || team.is_empty() || has_tank)
        };
        let ids: Vec<&str> =
            teams.iter().flatten().flat_map(|ticket| &ticket.players).map(|player| &*player.id).collect();
        ids.iter().collect::<BTreeSet<_>>().len() == ids.len()
            && self.slots().iter().zip(teams).all(|(shape, team)| fits(shape, team))
            && self.conditions.iter().all(|condition| condition.holds(teams, now))
    }

    /// Returns whether any match has the pivot: tries every lineup of the tickets.
    fn can_match(&self, pivot: &Ticket, others: &[&Ticket], now: i64) -> bool {
        let mut teams: Teams<'_> = vec![Vec::new(); self.slots().len()];
        (0..teams.len()).any(|slot| {
            teams[slot].push(pivot);
            let found = self.try_all(&mut teams, others, now);
            teams[slot].pop();
            found
        })
    }

    /// Returns whether any of these tickets, with any of the others, can join a match under way.
    fn can_join<'a>(&self, teams: &mut Teams<'a>, waiting: &[&'a Ticket], now: i64) -> bool {
        let before: usize = teams.iter().map(Vec::len).sum();
        self.try_joining(teams, waiting, now, before)
    }

    fn try_joining<'a>(
        &self,
        teams: &mut Teams<'a>,
        waiting: &[&'a Ticket],
        now: i64,
        before: usize,
    ) -> bool {
        let Some((first, rest)) = waiting.split_first() else {
            return teams.iter().map(Vec::len).sum::<usize>() > before
                && self.follows_rules(teams, now, false);
        };
        for slot in 0..teams.len() {
            teams[slot].push(first);
            let found = self.try_joining(teams, rest, now, before);
            teams[slot].pop();
            if found {
                return true;
            }
        }
        self.try_joining(teams, rest, now, before)
    }

    fn try_all<'a>(&self, teams: &mut Teams<'a>, others: &[&'a Ticket], now: i64) -> bool {
        let Some((first, rest)) = others.split_first() else { return self.is_match(teams, now) };
        for slot in 0..teams.len() {
            if size(&teams[slot]) + first.players.len() <= self.slots()[slot].max {
                teams[slot].push(first);
                let found = self.try_all(teams, rest, now);
                teams[slot].pop();
                if found {
                    return true;
                }
            }
        }
        self.try_all(teams, rest, now)
    }
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        (5..30_u32, 0..30_u32).prop_map(|(max, more)| Condition::Window {
            max: max.into(),
            grown: (max + more).into(),
            after: 10.0
        }),
        (5..30_u32, 0..30_u32).prop_map(|(max, more)| Condition::YoungestWindow {
            max: max.into(),
            grown: (max + more).into(),
            after: 10.0
        }),
        (1..12_u32).prop_map(|max| Condition::TeamAverages { max: max.into() }),
        Just(Condition::EqualSizes),
        Just(Condition::SameMode),
        (20..80_u32, 80..120_u32).prop_map(|(max, relaxed)| Condition::Latency {
            max: max.into(),
            relaxed: relaxed.into(),
            after: 15.0
        }),
        (1..6_u32).prop_map(|min| Condition::MinLevel { min: min.into() }),
        (10..40_u32).prop_map(|max| Condition::LevelTotal { max: max.into() }),
        (1..3_usize).prop_map(|min| Condition::CommonMaps { min }),
        any::<bool>().prop_map(|in_team| Condition::Blocked { in_team }),
        (0..2_usize).prop_map(|max| Condition::Premades { max }),
        (5..30_u32, 3..8_u32)
            .prop_map(|(spread, level)| Condition::Either { spread: spread.into(), level: level.into() }),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let team = |name: &'static str| {
        (1..3_usize, 0..3_usize, 1..3_usize, 0..3_usize, proptest::bool::weighted(0.3)).prop_map(
            move |(count, less, max, relaxed, has_roles)| {
                let min = max.saturating_sub(less).max(1);
                TeamShape { name, count, min, max, relaxed: min.saturating_sub(relaxed).max(1), has_roles }
            },
        )
    };
    let teams = prop_oneof![
        team("red").prop_map(|red| vec![red]),
        (team("red"), team("blue")).prop_map(|(red, blue)| vec![red, blue])
    ];
    let conditions = proptest::collection::vec(condition(), 0..4).prop_map(|mut conditions| {
        let mut seen = BTreeSet::new();
        conditions.retain(|condition| seen.insert(std::mem::discriminant(condition).clone().hash_text()));
        conditions
    });
    (teams, conditions, any::<bool>()).prop_map(|(teams, conditions, has_quality)| Setup {
        teams,
        conditions,
        has_quality,
    })
}

/// Makes a discriminant sortable.
trait HashText {
    fn hash_text(&self) -> String;
}

impl HashText for std::mem::Discriminant<Condition> {
    fn hash_text(&self) -> String {
        format!("{self:?}")
    }
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
        latency(),
        latency(),
    )
        .prop_map(|(skill, level, mode, maps, roles, blocked, eu, us)| {
            let texts = |words: Vec<&str>| Value::TextList(words.into_iter().map(Arc::from).collect());
            let attributes: BTreeMap<Arc<str>, Value> = [
                ("skill".into(), Value::Number(skill.into())),
                ("level".into(), Value::Number(level.into())),
                ("mode".into(), Value::Text(mode.into())),
                ("maps".into(), texts(maps)),
                ("roles".into(), texts(roles)),
                ("blocked".into(), texts(blocked)),
            ]
            .into();
            let regions = [("eu", eu), ("us", us)];
            let latency = regions
                .into_iter()
                .filter_map(|(region, latency)| Some((region.into(), f64::from(latency?))));
            Player { id: "".into(), attributes, latency: latency.collect() }
        })
}

fn tickets() -> impl Strategy<Value = Vec<Ticket>> {
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
            made.push(Ticket { id: format!("t{at}").into(), created: 100_000 - age * 1000, players });
        }
        made
    })
}

const NOW: i64 = 100_000;

fn check(setup: &Setup, tickets: &[Ticket]) -> Result<(), TestCaseError> {
    let rules = RuleSet::parse(&setup.text())
        .map_err(|mistakes| TestCaseError::fail(format!("{mistakes}\n{}", setup.text())))?;
    let pass = rules.find_matches(tickets, NOW, Options::EXHAUSTIVE);
    prop_assert_eq!(pass.cut_short, 0);
    let again = rules.find_matches(tickets, NOW, Options::EXHAUSTIVE);
    prop_assert_eq!(&pass, &again);
    let mut order: Vec<usize> = (0..tickets.len()).collect();
    order.sort_by_key(|at| (tickets[*at].created, tickets[*at].id.clone()));
    let refused: BTreeSet<&str> = pass.refused.iter().map(|refusal| &*refusal.ticket).collect();
    let mut free: BTreeSet<usize> =
        order.iter().copied().filter(|at| !refused.contains(&*tickets[*at].id)).collect();
    let mut matches = pass.matches.iter().peekable();
    for pivot in order.into_iter().filter(|at| !refused.contains(&*tickets[*at].id)) {
        if !free.contains(&pivot) {
            continue;
        }
        if let Some(made) = matches.next_if(|made| made.oldest == pivot) {
            let teams: Teams<'_> =
                made.teams.iter().map(|team| team.tickets.iter().map(|at| &tickets[*at]).collect()).collect();
            prop_assert!(setup.is_match(&teams, NOW), "not a match: {made:?}\n{}", setup.text());
            for ticket in made.tickets() {
                prop_assert!(free.remove(&ticket), "{ticket} is in two matches");
            }
        } else {
            free.remove(&pivot);
            let others: Vec<&Ticket> = free.iter().map(|at| &tickets[*at]).collect();
            prop_assert!(
                !setup.can_match(&tickets[pivot], &others, NOW),
                "{} waits, although it has a match\n{}",
                tickets[pivot].id,
                setup.text()
            );
        }
    }
    prop_assert!(matches.next().is_none(), "matches are not in the order of their oldest tickets");
    Ok(())
}

/// Makes matches of the first tickets, and lets the others join them.
fn check_joins(setup: &Setup, tickets: &[Ticket], matched: usize) -> Result<(), TestCaseError> {
    let rules = RuleSet::parse(&setup.text()).unwrap();
    let made = rules.find_matches(&tickets[..matched.min(tickets.len())], NOW, Options::EXHAUSTIVE).matches;
    // Tickets without a match wait with the others.
    let seats = |made: &rules::Match| -> Vec<Seated> {
        let teams = made.teams.iter();
        teams
            .flat_map(|team| team.tickets.iter().map(|at| Seated { team: team.name.clone(), ticket: *at }))
            .collect()
    };
    let under_way: Vec<Vec<Seated>> = made.iter().map(seats).collect();
    let joins = rules.find_joins(&under_way, tickets, NOW, Options::EXHAUSTIVE);
    prop_assert_eq!(&joins, &rules.find_joins(&under_way, tickets, NOW, Options::EXHAUSTIVE));
    let mut waiting: BTreeSet<usize> = (0..tickets.len()).collect();
    under_way.iter().flatten().for_each(|seated| drop(waiting.remove(&seated.ticket)));
    for join in &joins {
        let teams: Teams<'_> = join
            .lineup
            .teams
            .iter()
            .map(|team| team.tickets.iter().map(|at| &tickets[*at]).collect())
            .collect();
        prop_assert!(setup.follows_rules(&teams, NOW, false), "breaks a rule: {join:?}\n{}", setup.text());
        for seated in &under_way[join.under_way] {
            let team = join.lineup.teams.iter().find(|team| team.name == seated.team).unwrap();
            prop_assert!(team.tickets.contains(&seated.ticket), "{seated:?} has moved");
        }
        let new: Vec<usize> = join.lineup.tickets().filter(|at| waiting.remove(at)).collect();
        prop_assert!(!new.is_empty());
        prop_assert_eq!(join.lineup.tickets().count(), new.len() + under_way[join.under_way].len());
    }
    let refused = rules.find_matches(tickets, NOW, Options::EXHAUSTIVE).refused;
    let waiting: Vec<&Ticket> = waiting
        .iter()
        .map(|at| &tickets[*at])
        .filter(|ticket| !refused.iter().any(|refusal| refusal.ticket == ticket.id))
        .collect();
    for (at, made) in
        made.iter().enumerate().filter(|(at, _)| !joins.iter().any(|join| join.under_way == *at))
    {
        let mut teams: Teams<'_> =
            made.teams.iter().map(|team| team.tickets.iter().map(|at| &tickets[*at]).collect()).collect();
        prop_assert!(
            !setup.can_join(&mut teams, &waiting, NOW),
            "match {at} could be joined\n{}",
            setup.text()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn tickets_join_only_by_the_rules_and_nobody_waits_who_could_join(setup in setup(), tickets in tickets(), matched in 1..5_usize) {
        check_joins(&setup, &tickets, matched)?;
    }

    #[test]
    fn matches_follow_the_rules_and_no_pivot_waits_that_an_exhaustive_search_can_match(setup in setup(), tickets in tickets()) {
        check(&setup, &tickets)?;
    }

    #[test]
    fn matches_of_a_limited_search_follow_the_rules(setup in setup(), tickets in tickets(), seed in any::<u64>()) {
        let rules = RuleSet::parse(&setup.text()).unwrap();
        let patience = std::time::Duration::from_millis(500);
        let options =
            Options { seed, candidates: 4, pivot_budget: 5, pass_budget: 20, patience, turn: seed };
        let mut seen = BTreeSet::new();
        for made in rules.find_matches(&tickets, NOW, options).matches {
            let teams: Teams<'_> = made.teams.iter().map(|team| team.tickets.iter().map(|at| &tickets[*at]).collect()).collect();
            prop_assert!(setup.is_match(&teams, NOW), "not a match: {made:?}\n{}", setup.text());
            prop_assert!(made.tickets().all(|ticket| seen.insert(ticket)));
        }
    }
}
