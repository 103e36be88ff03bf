//! Random rule sets: teams, roles and conditions.

use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};

use proptest::prelude::*;
use rules::{Match, Player, Ticket};

use crate::condition::Condition;
use crate::players::{REGIONS, Teams, mean, size, texts};
use crate::schedule::Age;

#[derive(Clone, Debug)]
struct TeamShape {
    name: &'static str,
    count: usize,
    min: usize,
    max: usize,
    /// The fewest players after 20 seconds.
    relaxed: usize,
    age: Age,
    has_roles: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    teams: Vec<TeamShape>,
    conditions: Vec<Condition>,
    has_quality: bool,
    /// Sorts change who is tried first, and nothing that must hold.
    sorts: &'static str,
}

pub(crate) const ATTRIBUTES: &str = "[attributes]\nskill.type = \"number\"\nlevel.type = \"number\"\nmode.type = \"string\"\n\
    maps.type = \"string-list\"\nroles.type = \"string-list\"\nscores.type = \"number-map\"\n\
    [attributes.blocked]\ntype = \"string-list\"\ndefault = []\n";

const SORTS: [&str; 5] = [
    "",
    "",
    "[rules.sort]\ntype = \"distance-sort\"\nattribute = \"skill\"\ndirection = \"descending\"\nparty = \"max\"\n",
    "[rules.sort]\ntype = \"absolute-sort\"\nattribute = \"scores\"\nkey = \"max\"\ndirection = \"descending\"\n",
    "[rules.by-mode]\ntype = \"absolute-sort\"\nattribute = \"mode\"\n\
     [rules.by-level]\ntype = \"absolute-sort\"\nattribute = \"level\"\ndirection = \"descending\"\n",
];

impl Setup {
    pub(crate) fn text(&self) -> String {
        let mut text = format!("name = \"random\"\nrole_attribute = \"roles\"\n{ATTRIBUTES}");
        for team in &self.teams {
            let roles =
                if team.has_roles { "roles = { tank = { min = 1, max = 1 } , other = {} }\n" } else { "" };
            text += &format!(
                "[teams.{}]\ncount = {}\nmin = {}\nmax = {}\nage = \"{}\"\nrelax = [{{ after = 20, min = {} }}]\n{roles}",
                team.name,
                team.count,
                team.min,
                team.max,
                team.age.word(),
                team.relaxed
            );
        }
        text.extend(self.conditions.iter().map(Condition::text));
        text += self.sorts;
        if self.has_quality {
            text += "[quality]\nattribute = \"skill\"\nbalance = 1\nspread = 0.1\nlatency = 0.2\nwait = 1\n";
        }
        text
    }

    fn slots(&self) -> Vec<&TeamShape> {
        self.teams.iter().flat_map(|team| std::iter::repeat_n(team, team.count)).collect()
    }

    /// Returns whether teams are a match. Nothing of the crate is used.
    pub(crate) fn is_match(&self, teams: &Teams<'_>) -> bool {
        self.holds(teams, true)
    }

    /// Returns whether the teams of a match under way follow the rules: their minima do not count.
    pub(crate) fn follows_rules(&self, teams: &Teams<'_>) -> bool {
        self.holds(teams, false)
    }

    fn holds(&self, teams: &Teams<'_>, have_minima: bool) -> bool {
        let tickets: Vec<&Ticket> = teams.iter().flatten().copied().collect();
        let ids: Vec<&str> =
            tickets.iter().flat_map(|ticket| &ticket.players).map(|player| &*player.id).collect();
        let needs_region = self.conditions.iter().any(|condition| condition.needs_region(&tickets));
        ids.iter().collect::<BTreeSet<_>>().len() == ids.len()
            && self.slots().iter().zip(teams).all(|(shape, team)| shape.admits(team, &tickets, have_minima))
            && self.conditions.iter().all(|condition| condition.holds(teams))
            && (!needs_region || REGIONS.iter().any(|region| self.admits_region(region, &tickets)))
    }

    fn admits_region(&self, region: &str, tickets: &[&Ticket]) -> bool {
        let mut players = tickets.iter().flat_map(|ticket| &ticket.players);
        players.all(|player| player.latency.contains_key(region))
            && self.conditions.iter().all(|condition| condition.admits_region(region, tickets))
    }

    /// Returns what is wrong with what a match says of its regions and roles.
    pub(crate) fn mistake_in(&self, made: &Match, teams: &Teams<'_>) -> Option<String> {
        let tickets: Vec<&Ticket> = teams.iter().flatten().copied().collect();
        let mut regions: Vec<(String, f64)> = Vec::new();
        for region in REGIONS.iter().filter(|region| self.admits_region(region, &tickets)) {
            let players = tickets.iter().flat_map(|ticket| &ticket.players);
            let latencies: Vec<f64> = players.map(|player| player.latency[*region]).collect();
            regions.push(((*region).to_owned(), mean(&latencies)));
        }
        regions.sort_by(|one, two| one.1.total_cmp(&two.1).then_with(|| one.0.cmp(&two.0)));
        let found: Vec<(String, f64)> =
            made.regions.iter().map(|(name, average)| (name.to_string(), *average)).collect();
        let is_equal =
            |(one, two): (&(String, f64), &(String, f64))| one.0 == two.0 && (one.1 - two.1).abs() < 1e-9;
        if found.len() != regions.len() || !found.iter().zip(&regions).all(is_equal) {
            return Some(format!("regions {found:?}, expected {regions:?}"));
        }
        for ((shape, team), lineup) in self.slots().iter().zip(teams).zip(&made.teams) {
            if lineup.open != shape.max - size(team) {
                return Some(format!("{} places open in {}", lineup.open, lineup.name));
            }
            let players: Vec<&Player> = team.iter().flat_map(|ticket| &ticket.players).collect();
            let roles: Vec<&str> = lineup.roles.iter().map(|role| &**role).collect();
            let is_sound = if shape.has_roles && !players.is_empty() {
                roles.len() == players.len()
                    && roles.iter().filter(|role| **role == "tank").count() == 1
                    && players.iter().zip(&roles).all(|(player, role)| plays(player, role))
            } else {
                roles.is_empty()
            };
            if !is_sound {
                return Some(format!("roles {roles:?} of {players:?}"));
            }
        }
        None
    }

    /// Returns whether any match has the pivot: tries every lineup of the tickets.
    pub(crate) fn can_match(&self, pivot: &Ticket, others: &[&Ticket]) -> bool {
        let mut teams: Teams<'_> = vec![Vec::new(); self.slots().len()];
        (0..teams.len()).any(|slot| {
            teams[slot].push(pivot);
            let found = self.try_all(&mut teams, others);
            teams[slot].pop();
            found
        })
    }

    fn try_all<'a>(&self, teams: &mut Teams<'a>, others: &[&'a Ticket]) -> bool {
        let Some((first, rest)) = others.split_first() else { return self.is_match(teams) };
        for slot in 0..teams.len() {
            if size(&teams[slot]) + first.players.len() <= self.slots()[slot].max {
                teams[slot].push(first);
                let found = self.try_all(teams, rest);
                teams[slot].pop();
                if found {
                    return true;
                }
            }
        }
        self.try_all(teams, rest)
    }

    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let teams = prop_oneof![
            TeamShape::any("red").prop_map(|red| vec![red]),
            (TeamShape::any("red"), TeamShape::any("blue")).prop_map(|(red, blue)| vec![red, blue])
        ];
        let conditions = proptest::collection::vec(Condition::any(), 0..4).prop_map(|mut conditions| {
            // One of each kind, so that names are different.
            let mut seen: Vec<Discriminant<Condition>> = Vec::new();
            conditions.retain(|condition| {
                let is_new = !seen.contains(&discriminant(condition));
                seen.push(discriminant(condition));
                is_new
            });
            conditions
        });
        let sorts = proptest::sample::select(&SORTS[..]);
        (teams, conditions, any::<bool>(), sorts).prop_map(|(teams, conditions, has_quality, sorts)| Self {
            teams,
            conditions,
            has_quality,
            sorts,
        })
    }
}

fn plays(player: &Player, role: &str) -> bool {
    let wishes = texts(player, "roles");
    wishes.is_empty() || wishes.iter().any(|wish| &**wish == role)
}

impl TeamShape {
    fn admits(&self, team: &[&Ticket], tickets: &[&Ticket], has_minimum: bool) -> bool {
        let min = if self.age.of(tickets) >= 20.0 { self.relaxed } else { self.min };
        let min = if has_minimum { min } else { 0 };
        let players: Vec<&Player> = team.iter().flat_map(|ticket| &ticket.players).collect();
        // Some player takes the role of the tank, all others have another one.
        let has_tank = (0..players.len()).any(|tank| {
            plays(players[tank], "tank")
                && (0..players.len()).all(|other| other == tank || plays(players[other], "other"))
        });
        (min..=self.max).contains(&players.len()) && (!self.has_roles || players.is_empty() || has_tank)
    }

    fn any(name: &'static str) -> impl Strategy<Value = Self> {
        (1..3_usize, 0..3_usize, 1..3_usize, 0..3_usize, Age::any(), proptest::bool::weighted(0.3)).prop_map(
            move |(count, less, max, relaxed, age, has_roles)| {
                let min = max.saturating_sub(less).max(1);
                let relaxed = min.saturating_sub(relaxed).max(1);
                Self { name, count, min, max, relaxed, age, has_roles }
            },
        )
    }
}
