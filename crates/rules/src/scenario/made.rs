//! What a test expects of one match, field by field.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::document::{Data, Node};
use crate::fields::Fields;
use crate::matcher::{Match, TeamLineup};
use crate::ticket::Ticket;

/// The expectation of one match. Only what is named is compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Made {
    players: Option<Who>,
    teams: BTreeMap<String, Who>,
    /// Exactly these regions, the best first.
    regions: Option<Vec<String>>,
    /// The roles of the players of a ticket, or of all tickets that one `[[case.ticket]]` stands for.
    roles: BTreeMap<String, Vec<String>>,
    open: Option<Open>,
}

/// Who plays.
#[derive(Clone, Debug, PartialEq)]
enum Who {
    /// So many players.
    Players(usize),
    /// Exactly these tickets.
    Tickets(BTreeSet<String>),
    /// So many tickets of each `[[case.ticket]]`.
    Groups(BTreeMap<String, usize>),
}

/// How many places are open.
#[derive(Clone, Debug, PartialEq)]
enum Open {
    Match(usize),
    Teams(BTreeMap<String, usize>),
}

/// A match with its tickets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) made: &'a Match,
    pub(super) tickets: &'a [Ticket],
    /// The `[[case.ticket]]` of each ticket, both by id.
    pub(super) groups: &'a BTreeMap<Arc<str>, Arc<str>>,
}

impl Made {
    pub(super) fn read(fields: &Fields<'_>) -> Self {
        let expected_who = "a number of players, a list of tickets, or a table such as { medic = 5 }";
        let who = |name: &str, node: &Node| {
            let found = Who::read(node);
            if found.is_none() {
                fields
                    .add_at(node.position, format!("{name}: expected {expected_who}, found {}", node.kind()));
            }
            found
        };
        let players = fields.get("players").and_then(|node| who("players", node));
        let mut teams = BTreeMap::new();
        for (name, node) in entries(fields, "teams") {
            teams.extend(who(&format!("teams.{name}"), node).map(|who| (name.clone(), who)));
        }
        let mut roles = BTreeMap::new();
        for (name, node) in entries(fields, "roles") {
            match texts(node) {
                Some(of_ticket) => drop(roles.insert(name.clone(), of_ticket)),
                None => fields.add_at(
                    node.position,
                    format!("roles.{name}: expected a role, or a list of roles, found {}", node.kind()),
                ),
            }
        }
        let open = fields.get("open").and_then(|node| {
            let open = match &node.data {
                Data::Table(_) => numbers(node).map(Open::Teams),
                _ => count(node).map(Open::Match),
            };
            if open.is_none() {
                fields.add_at(
                    node.position,
                    "open: expected a number of places, or a table such as { red = 1 }",
                );
            }
            open
        });
        let regions = fields.get("regions").map(|_| fields.texts("regions"));
        fields.finish();
        Self { players, teams, regions, roles, open }
    }

    /// Returns what differs, each as the end of a sentence.
    pub(super) fn compare(&self, found: Found<'_>) -> Vec<String> {
        let mut failures = Vec::new();
        if let Some(who) = &self.players {
            let all: Vec<usize> = found.made.tickets().collect();
            failures.extend(who.compare(&all, found).map(|failure| format!("players: {failure}")));
        }
        for (name, who) in &self.teams {
            match found.team(name) {
                Some(team) => failures.extend(
                    who.compare(&team.tickets, found).map(|failure| format!("teams.{name}: {failure}")),
                ),
                None => failures.push(found.no_team("teams", name)),
            }
        }
        if let Some(expected) = &self.regions {
            let regions: Vec<&str> = found.made.regions.iter().map(|(name, _)| &**name).collect();
            if regions != *expected {
                failures.push(format!("regions: expected {expected:?}; found {regions:?}"));
            }
        }
        for (name, expected) in &self.roles {
            let of_name: Vec<Vec<&str>> = found.roles(name);
            if of_name.is_empty() {
                failures.push(format!("roles.{name}: it is not in the match"));
            }
            if let Some(other) = of_name.iter().find(|roles| *roles != expected) {
                failures.push(format!("roles.{name}: expected {expected:?}; found {other:?}"));
            }
        }
        match &self.open {
            Some(Open::Match(expected)) if *expected != found.made.open() => {
                failures.push(format!("open: expected {expected}; found {}", found.made.open()));
            }
            Some(Open::Teams(teams)) => {
                for (name, expected) in teams {
                    match found.team(name) {
                        Some(team) if team.open == *expected => {}
                        Some(team) => {
                            failures.push(format!("open.{name}: expected {expected}; found {}", team.open));
                        }
                        None => failures.push(found.no_team("open", name)),
                    }
                }
            }
            _ => {}
        }
        failures
    }
}

impl Who {
    fn read(node: &Node) -> Option<Self> {
        match &node.data {
            Data::Number(_) => count(node).map(Self::Players),
            Data::List(_) => Some(Self::Tickets(texts(node)?.into_iter().collect())),
            Data::Table(_) => numbers(node).map(Self::Groups),
            _ => None,
        }
    }

    fn compare(&self, tickets: &[usize], found: Found<'_>) -> Option<String> {
        match self {
            Self::Players(expected) => {
                let players: usize = tickets.iter().map(|at| found.tickets[*at].players.len()).sum();
                (players != *expected).then(|| format!("expected {expected}; found {players}"))
            }
            Self::Tickets(expected) => {
                let ids: BTreeSet<String> =
                    tickets.iter().map(|at| found.tickets[*at].id.to_string()).collect();
                (ids != *expected)
                    .then(|| format!("expected {}; found {}", super::names(expected), super::names(&ids)))
            }
            Self::Groups(expected) => {
                let mut groups: BTreeMap<String, usize> = BTreeMap::new();
                for at in tickets {
                    *groups.entry(found.group(*at).to_owned()).or_default() += 1;
                }
                (groups != *expected).then(|| format!("expected {}; found {}", show(expected), show(&groups)))
            }
        }
    }
}

impl<'a> Found<'a> {
    fn group(&self, ticket: usize) -> &'a str {
        let id = &self.tickets[ticket].id;
        self.groups.get(id).unwrap_or(id)
    }

    fn team(&self, name: &str) -> Option<&'a TeamLineup> {
        self.made.teams.iter().find(|team| &*team.name == name)
    }

    fn no_team(&self, field: &str, name: &str) -> String {
        let known: Vec<&str> = self.made.teams.iter().map(|team| &*team.name).collect();
        format!("{field}.{name}: there is no such team; known: {}", known.join(", "))
    }

    /// Returns the roles of each ticket that has this id or is of this group.
    fn roles(&self, name: &str) -> Vec<Vec<&'a str>> {
        let mut found = Vec::new();
        for team in &self.made.teams {
            let mut roles = team.roles.iter().map(|role| &**role);
            for at in &team.tickets {
                let of_ticket = roles.by_ref().take(self.tickets[*at].players.len()).collect();
                if &*self.tickets[*at].id == name || self.group(*at) == name {
                    found.push(of_ticket);
                }
            }
        }
        found
    }
}

/// Returns the entries of a table. Records a mistake if it is none.
fn entries<'a>(fields: &Fields<'a>, name: &'static str) -> &'a [(String, Node)] {
    match fields.get(name).map(|node| (&node.data, node.position)) {
        None => &[],
        Some((Data::Table(entries), _)) => entries,
        Some((_, position)) => {
            fields.add_at(position, format!("{name}: expected a table"));
            &[]
        }
    }
}

fn count(node: &Node) -> Option<usize> {
    match node.data {
        Data::Number(number) if number.fract() == 0.0 && number >= 0.0 => Some(number as usize),
        _ => None,
    }
}

fn numbers(node: &Node) -> Option<BTreeMap<String, usize>> {
    let Data::Table(entries) = &node.data else { return None };
    entries.iter().map(|(name, node)| Some((name.clone(), count(node)?))).collect()
}

/// Reads texts. A single one is a list of one.
fn texts(node: &Node) -> Option<Vec<String>> {
    let text = |node: &Node| match &node.data {
        Data::Text(text) => Some(text.clone()),
        _ => None,
    };
    match &node.data {
        Data::List(items) => items.iter().map(text).collect(),
        _ => Some(vec![text(node)?]),
    }
}

fn show(groups: &BTreeMap<String, usize>) -> String {
    let group = |(name, count): (&String, &usize)| format!("{name} = {count}");
    format!("{{ {} }}", groups.iter().map(group).collect::<Vec<_>>().join(", "))
}
