//! Tests of a rule set: tickets that join on a fake clock, and the matches that are expected.

mod made;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use self::made::{Found, Made};
use crate::document::{Data, Node};
use crate::fields::{Fields, Report};
use crate::matcher::{Match, Options};
use crate::mistake::Mistakes;
use crate::model::{RuleSet, Value};
use crate::parse::value;
use crate::ticket::{Player, Ticket};
use crate::why::Reason;

/// A file of cases for one rule set.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The file of the rule set, relative to this one.
    pub rules: String,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub name: String,
    tickets: Vec<Ticket>,
    /// The `[[case.ticket]]` of each ticket, both by id.
    groups: BTreeMap<Arc<str>, Arc<str>>,
    steps: Vec<Step>,
}

/// What is expected at one moment.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    at: i64,
    matches: Option<Vec<Expected>>,
    /// The sizes of all matches, in players.
    sizes: Option<Vec<usize>>,
    /// What is expected of each match, in the order of their oldest tickets.
    made: Option<Vec<Made>>,
    /// The tickets that still wait.
    waiting: Option<BTreeSet<String>>,
    /// The rule that keeps a ticket waiting.
    why: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Tickets(BTreeSet<String>),
    Teams(BTreeMap<String, BTreeSet<String>>),
}

/// The outcome of one case: what differed from the expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    pub case: String,
    pub failures: Vec<String>,
}

impl Scenario {
    /// Reads a scenario from TOML or JSON.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        let node = Node::parse(text)?;
        let report = Report::default();
        let fields = Fields::open(&report, &node, "");
        fields.required("rules");
        let rules = fields.text("rules").unwrap_or_default().to_owned();
        let cases: Vec<Case> = fields.items("case").iter().map(read_case).collect();
        if cases.is_empty() {
            fields.add_at(node.position, "at least one [[case]] is required");
        }
        fields.finish();
        if report.is_empty() { Ok(Self { rules, cases }) } else { Err(Mistakes::new(report.into_mistakes())) }
    }

    /// Plays all cases.
    pub fn run(&self, rules: &RuleSet) -> Vec<CaseResult> {
        self.cases.iter().map(|case| case.run(rules)).collect()
    }
}

fn read_case(fields: &Fields<'_>) -> Case {
    fields.required("name");
    let (mut tickets, mut groups) = (Vec::new(), BTreeMap::new());
    for item in fields.items("ticket") {
        let first = tickets.len();
        read_tickets(&item, &mut tickets);
        let group: Arc<str> = item.text("id").unwrap_or_default().into();
        groups.extend(tickets[first..].iter().map(|ticket| (ticket.id.clone(), group.clone())));
    }
    let steps: Vec<Step> = fields.items("step").iter().map(read_step).collect();
    if steps.is_empty() {
        fields.add("at least one [[case.step]] is required");
    }
    let mut ids = BTreeSet::new();
    for ticket in tickets.iter().filter(|ticket| !ids.insert(ticket.id.clone())) {
        fields.add(format!("two tickets are called {}", ticket.id));
    }
    fields.finish();
    Case { name: fields.text("name").unwrap_or_default().to_owned(), tickets, groups, steps }
}

/// Reads a ticket, or `count` equal ones, called `ID-1`, `ID-2` ….
fn read_tickets(fields: &Fields<'_>, tickets: &mut Vec<Ticket>) {
    fields.required("id");
    let id = fields.text("id").unwrap_or_default();
    let joined = fields.number("joined").unwrap_or(0.0);
    let of_all = read_player(fields);
    let players = match fields.get("players") {
        Some(Node { data: Data::List(_), .. }) => {
            let players = fields.items("players");
            let read = |item: &Fields<'_>| {
                let mut player = read_player(item);
                player.id = item.text("id").unwrap_or_default().into();
                item.finish();
                for (name, value) in &of_all.attributes {
                    player.attributes.entry(name.clone()).or_insert_with(|| value.clone());
                }
                if player.latency.is_empty() {
                    player.latency = of_all.latency.clone();
                }
                player
            };
            players.iter().map(read).collect()
        }
        _ => vec![of_all; fields.count("players", 1, 1000).unwrap_or(1)],
    };
    let count = fields.count("count", 1, 100_000);
    for number in 1..=count.unwrap_or(1) {
        let id: Arc<str> = if count.is_some() { format!("{id}-{number}").into() } else { id.into() };
        let mut players = players.clone();
        for (at, player) in players.iter_mut().enumerate().filter(|(_, player)| player.id.is_empty()) {
            player.id = if at == 0 { id.clone() } else { format!("{id}/{}", at + 1).into() };
        }
        tickets.push(Ticket { id, created: (joined * 1000.0) as i64, players });
    }
    fields.finish();
}

fn read_player(fields: &Fields<'_>) -> Player {
    let mut player = Player::default();
    if let Some(node) = fields.get("attributes") {
        match &node.data {
            Data::Table(entries) => {
                for (name, node) in entries {
                    match value::read(node) {
                        Ok(value) => drop(player.attributes.insert(name.as_str().into(), value)),
                        Err(expected) => {
                            fields.add_at(node.position, format!("attributes.{name}: {expected}"))
                        }
                    }
                }
            }
            _ => fields.add_at(node.position, "attributes: expected a table"),
        }
    }
    if let Some(node) = fields.get("latency") {
        match value::read(node) {
            Ok(Value::NumberMap(latency)) => player.latency = latency,
            _ => fields.add_at(node.position, "latency: expected a table of numbers, such as { eu = 40 }"),
        }
    }
    player
}

fn read_step(fields: &Fields<'_>) -> Step {
    fields.required("at");
    let texts = |node: &Node| -> Option<BTreeSet<String>> {
        let Data::List(items) = &node.data else { return None };
        items
            .iter()
            .map(|item| match &item.data {
                Data::Text(text) => Some(text.clone()),
                _ => None,
            })
            .collect()
    };
    let matches = fields.get("matches").map(|_| {
        let mut expected = Vec::new();
        for item in fields.list("matches") {
            let found = match &item.data {
                Data::List(_) => texts(item).map(Expected::Tickets),
                Data::Table(teams) => {
                    let teams = teams.iter().map(|(name, node)| Some((name.clone(), texts(node)?)));
                    teams.collect::<Option<_>>().map(Expected::Teams)
                }
                _ => None,
            };
            match found {
                Some(found) => expected.push(found),
                None => fields.add_at(
                    item.position,
                    "matches: expected lists of tickets, or tables of teams with lists of tickets",
                ),
            }
        }
        expected
    });
    let sizes = fields.get("sizes").map(|_| {
        let sizes = fields.list("sizes").iter().map(|item| match item.data {
            Data::Number(size) => size as usize,
            _ => {
                fields.add_at(item.position, "sizes: expected numbers of players");
                0
            }
        });
        sizes.collect()
    });
    let why = match fields.get("why").map(|node| (&node.data, node.position)) {
        None => Vec::new(),
        Some((Data::Table(entries), _)) => entries
            .iter()
            .filter_map(|(ticket, node)| match &node.data {
                Data::Text(rule) => Some((ticket.clone(), rule.clone())),
                _ => {
                    fields.add_at(node.position, "why: expected the name of a rule");
                    None
                }
            })
            .collect(),
        Some((_, position)) => {
            fields.add_at(position, "why: expected a table, such as { anna = \"skill\" }");
            Vec::new()
        }
    };
    let step = Step {
        at: (fields.number("at").unwrap_or(0.0) * 1000.0) as i64,
        matches,
        sizes,
        made: fields.get("made").map(|_| fields.items("made").iter().map(Made::read).collect()),
        waiting: fields.get("waiting").map(|_| fields.texts("waiting").into_iter().collect()),
        why,
    };
    fields.finish();
    step
}

impl Case {
    fn run(&self, rules: &RuleSet) -> CaseResult {
        let mut failures = Vec::new();
        let mut gone = BTreeSet::new();
        for step in &self.steps {
            let present = |ticket: &&Ticket| ticket.created <= step.at && !gone.contains(&ticket.id);
            let tickets: Vec<Ticket> = self.tickets.iter().filter(present).cloned().collect();
            for (ticket, expected) in &step.why {
                let found = match rules.why(ticket, &tickets, step.at).map(|why| why.reason) {
                    None => "it does not wait".to_owned(),
                    Some(Reason::Rule { rule } | Reason::NoLineup { rule: Some(rule) }) => rule.to_string(),
                    Some(other) => format!("{other:?}"),
                };
                if found != *expected {
                    failures.push(format!(
                        "at {}: {ticket} waits because of {expected}: found {found}",
                        seconds(step.at)
                    ));
                }
            }
            let pass = rules.find_matches(&tickets, step.at, Options::default());
            failures.extend(pass.refused.iter().map(|refusal| format!("at {}: {refusal}", seconds(step.at))));
            step.compare(&tickets, &pass.matches, &mut failures);
            step.compare_made(&tickets, &self.groups, &pass.matches, &mut failures);
            gone.extend(
                pass.matches
                    .iter()
                    .flat_map(|made| made.tickets().map(|at| tickets[at].id.clone()).collect::<Vec<_>>()),
            );
            let waiting: BTreeSet<String> = tickets
                .iter()
                .filter(|ticket| !gone.contains(&ticket.id))
                .map(|ticket| ticket.id.to_string())
                .collect();
            if let Some(expected) = &step.waiting
                && *expected != waiting
            {
                failures.push(format!(
                    "at {}: expected to wait: {}; found: {}",
                    seconds(step.at),
                    names(expected),
                    names(&waiting)
                ));
            }
        }
        CaseResult { case: self.name.clone(), failures }
    }
}

impl Step {
    fn compare(&self, tickets: &[Ticket], matches: &[Match], failures: &mut Vec<String>) {
        let at = seconds(self.at);
        let ids = |indexes: &mut dyn Iterator<Item = usize>| {
            indexes.map(|at| tickets[at].id.to_string()).collect::<BTreeSet<String>>()
        };
        if let Some(expected) = &self.sizes {
            let size = |made: &Match| made.tickets().map(|at| tickets[at].players.len()).sum::<usize>();
            let found: Vec<usize> = matches.iter().map(size).collect();
            if found != *expected {
                failures.push(format!("at {at}: expected matches of {expected:?} players; found {found:?}"));
            }
        }
        let Some(expected) = &self.matches else { return };
        let mut left: Vec<&Match> = matches.iter().collect();
        for expected in expected {
            let is_it = |made: &&Match| match expected {
                Expected::Tickets(tickets) => ids(&mut made.tickets()) == *tickets,
                Expected::Teams(teams) => {
                    let found: BTreeMap<String, BTreeSet<String>> = made
                        .teams
                        .iter()
                        .map(|team| (team.name.to_string(), ids(&mut team.tickets.iter().copied())))
                        .filter(|(_, tickets)| !tickets.is_empty())
                        .collect();
                    found == *teams
                }
            };
            match left.iter().position(is_it) {
                Some(found) => drop(left.remove(found)),
                None => failures.push(format!("at {at}: no match {}", show(expected))),
            }
        }
        for made in left {
            let mut teams = String::new();
            for team in &made.teams {
                let _ = write!(teams, " {} = {}", team.name, names(&ids(&mut team.tickets.iter().copied())));
            }
            failures.push(format!("at {at}: an unexpected match:{teams}"));
        }
    }

    fn compare_made(
        &self,
        tickets: &[Ticket],
        groups: &BTreeMap<Arc<str>, Arc<str>>,
        matches: &[Match],
        failures: &mut Vec<String>,
    ) {
        let Some(expected) = &self.made else { return };
        let at = seconds(self.at);
        if expected.len() != matches.len() {
            failures.push(format!("at {at}: expected {} matches; found {}", expected.len(), matches.len()));
        }
        for (number, (expected, made)) in expected.iter().zip(matches).enumerate() {
            let found = Found { made, tickets, groups };
            let of_match = |failure| format!("at {at}: match {}: {failure}", number + 1);
            failures.extend(expected.compare(found).into_iter().map(of_match));
        }
    }
}

fn show(expected: &Expected) -> String {
    match expected {
        Expected::Tickets(tickets) => format!("of {}", names(tickets)),
        Expected::Teams(teams) => {
            let team = |(name, tickets): (&String, &BTreeSet<String>)| format!("{name} = {}", names(tickets));
            teams.iter().map(team).collect::<Vec<_>>().join(", ")
        }
    }
}

fn names(ids: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = ids.iter().take(20).map(String::as_str).collect();
    let more = if ids.len() > 20 { format!(" and {} more", ids.len() - 20) } else { String::new() };
    format!("[{}]{more}", shown.join(", "))
}

fn seconds(millis: i64) -> String {
    format!("{} s", millis as f64 / 1000.0)
}
