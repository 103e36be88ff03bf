//! Finds what is valid and yet cannot work: parties without a place, roles that nobody fills, relaxations without effect.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::matcher::Options;
use crate::mistake::Position;
use crate::model::{AttributeKind, Change, Party, Reference, RuleKind, RuleSet, Schedule, Statement, Value};
use crate::ticket::{Player, Ticket};

/// Something that probably is not meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    pub position: Option<Position>,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{position}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl RuleSet {
    /// Returns what a studio should look at before it uses the rule set.
    pub fn lint(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        self.lint_attributes(&mut warnings);
        self.lint_roles(&mut warnings);
        self.lint_relaxations(&mut warnings);
        self.lint_limits(&mut warnings);
        // The trials would only repeat what is known.
        if warnings.is_empty() {
            self.lint_by_trial(&mut warnings);
        }
        warnings.sort();
        warnings
    }

    fn lint_attributes(&self, warnings: &mut Vec<Warning>) {
        let is_unused = |at: &usize| self.readers(*at).is_empty();
        for attribute in (0..self.attributes.len()).filter(is_unused).map(|at| &self.attributes[at]) {
            let needed = if attribute.default.is_none() { ", and yet every ticket must have it" } else { "" };
            warnings.push(Warning {
                position: None,
                message: format!("attributes.{}: nothing uses it{needed}", attribute.name),
            });
        }
    }

    fn lint_roles(&self, warnings: &mut Vec<Warning>) {
        for team in self.teams.iter().filter(|team| !team.roles.is_empty()) {
            let least: usize = team.roles.iter().map(|role| role.min).sum();
            let most: usize = team.roles.iter().map(|role| role.max).sum();
            let fewest = team.min_at(0.0);
            let mut warn =
                |message: String| warnings.push(Warning { position: Some(team.position), message });
            if least > team.max {
                warn(format!(
                    "teams.{}: its roles need {least} players, and it has room for {}: no match is possible",
                    team.name, team.max
                ));
            } else if most < fewest {
                warn(format!(
                    "teams.{}: its roles admit {most} players, and it needs {fewest}: no match is possible",
                    team.name
                ));
            } else if most < team.max {
                warn(format!(
                    "teams.{}: its roles admit {most} players, so its max of {} is never reached",
                    team.name, team.max
                ));
            }
        }
        let names: BTreeSet<&str> =
            self.teams.iter().flat_map(|team| &team.roles).map(|role| &*role.name).collect();
        let default = self.role_attribute.and_then(|at| self.attributes[at].default.as_ref());
        let wishes: Vec<&Arc<str>> = match default {
            Some(Value::Text(role)) => vec![role],
            Some(Value::TextList(roles)) => roles.iter().collect(),
            _ => Vec::new(),
        };
        for wish in wishes.into_iter().filter(|wish| !names.contains(&***wish)) {
            warnings
                .push(Warning { position: None, message: format!("the default role {wish} is in no team") });
        }
    }

    fn lint_relaxations(&self, warnings: &mut Vec<Warning>) {
        for team in &self.teams {
            lint_schedule(
                &format!("teams.{}: min", team.name),
                team.position,
                &team.min,
                Some(false),
                warnings,
            );
        }
        for rule in &self.rules {
            for (name, schedule) in rule.schedules() {
                // A higher maximum admits more, a lower minimum too. A reference has no direction.
                let admits_more = match name {
                    "max" | "max_distance" | "off" => Some(true),
                    "min" => Some(false),
                    _ => None,
                };
                lint_schedule(
                    &format!("rules.{}: {name}", rule.name),
                    rule.position,
                    schedule,
                    admits_more,
                    warnings,
                );
            }
            let is_off = |age: f64| rule.is_off(age);
            let ages: Vec<f64> = rule.off.changes();
            if is_off(0.0) && !ages.iter().any(|age| !is_off(*age)) {
                warnings.push(Warning {
                    position: Some(rule.position),
                    message: format!("rules.{}: it is off, and nothing turns it on", rule.name),
                });
            }
            if let Some(off) = ages.iter().find(|age| is_off(**age))
                && ages.iter().all(|age| age < off || is_off(*age))
            {
                let late = rule
                    .schedules()
                    .into_iter()
                    .filter(|(name, _)| *name != "off")
                    .flat_map(|(_, schedule)| schedule.changes());
                if late.into_iter().any(|age| age >= *off) {
                    warnings.push(Warning {
                        position: Some(rule.position),
                        message: format!(
                            "rules.{}: it is off after {off} s, so later relaxations have no effect",
                            rule.name
                        ),
                    });
                }
            }
        }
    }

    fn lint_limits(&self, warnings: &mut Vec<Warning>) {
        for rule in &self.rules {
            let mut warn = |message: &str| {
                warnings.push(Warning {
                    position: Some(rule.position),
                    message: format!("rules.{}: {message}", rule.name),
                });
            };
            let ages: Vec<f64> = std::iter::once(0.0)
                .chain(rule.schedules().iter().flat_map(|(_, schedule)| schedule.changes()))
                .collect();
            for age in &ages {
                if let (Some(min), Some(max)) = (rule.min.at(*age), rule.max.at(*age))
                    && min > max
                    && *age > 0.0
                {
                    warn(&format!("after {age} s min ({min}) is larger than max ({max}): nothing passes"));
                    break;
                }
            }
            let admits_nothing =
                |schedule: &Schedule| ages.iter().all(|age| schedule.at(*age).is_some_and(|max| max < 0.0));
            if admits_nothing(&rule.max) && !matches!(rule.kind, RuleKind::Total { .. }) {
                warn("max is negative: nothing passes");
            }
            if let RuleKind::Collection { .. } = rule.kind
                && rule.min.at(0.0).is_some_and(|min| min <= 0.0)
                && rule.max.is_absent()
                && rule.min.is_fixed()
            {
                warn("a min of 0 without max admits everything");
            }
            if let RuleKind::Compound { statement } = &rule.kind {
                lint_statement(statement, &mut warn);
            }
            if let RuleKind::BatchDistance { attribute } = rule.kind
                && rule.party == Party::Each
                && self.max_party > 1
                && self.attributes[attribute].kind == AttributeKind::Number
            {
                warn(&format!(
                    "with party = \"each\", a party whose own players are more than {} apart never finds a match",
                    rule.max.at(f64::MAX).unwrap_or(0.0)
                ));
            }
        }
    }

    /// Tries each party size with invented tickets: if none of several pools yields a match, nothing a player does will.
    fn lint_by_trial(&self, warnings: &mut Vec<Warning>) {
        let late =
            self.rules.iter().flat_map(|rule| rule.schedules()).flat_map(|(_, schedule)| schedule.changes());
        let late = late.chain(self.teams.iter().flat_map(|team| team.min.changes())).fold(0.0, f64::max);
        let largest = self.teams.iter().map(|team| team.max).max().unwrap_or(1).min(self.max_party);
        let now = ((late + 1.0) * 1000.0) as i64;
        let mut failed = Vec::new();
        for size in 1..=largest {
            let is_matched = |age: i64| {
                (0..TRIALS).any(|trial| {
                    let tickets = self.trial(size, trial, now - age);
                    let options = Options { pivot_budget: 500, ..Options::default() };
                    self.find_matches(&tickets, now, options)
                        .matches
                        .iter()
                        .any(|made| made.tickets().any(|at| at == 0))
                })
            };
            if !is_matched(0) && !is_matched(now) {
                failed.push(size);
            }
        }
        if failed.len() == largest {
            let reason = "no invented pool of tickets yields a match, however long they wait: look for rules that contradict each other";
            warnings.push(Warning { position: None, message: reason.to_owned() });
        } else {
            for size in failed {
                let message = format!(
                    "no invented pool of tickets yields a match for a party of {size}: set max_party, or make room for it"
                );
                warnings.push(Warning { position: None, message });
            }
        }
    }

    /// Invents a pool: a party of this size, and enough others.
    fn trial(&self, size: usize, trial: usize, created: i64) -> Vec<Ticket> {
        let names = self.names_in_rules();
        let numbers = self.numbers_in_rules();
        let seats = self.role_of_each_place();
        let player = |at: usize, spread: usize| {
            let value = |attribute: usize| match self.attributes[attribute].kind {
                AttributeKind::Number => {
                    let base = numbers.get((trial / 2) % (numbers.len() + 1)).copied().unwrap_or(10.0);
                    Value::Number(base + if trial.is_multiple_of(2) { 0.0 } else { spread as f64 })
                }
                AttributeKind::Text => Value::Text(
                    names
                        .get((if trial.is_multiple_of(2) { trial / 2 } else { spread }) % names.len().max(1))
                        .cloned()
                        .unwrap_or_else(|| "x".into()),
                ),
                AttributeKind::TextList if trial % 3 == 2 => Value::TextList(Vec::new()),
                AttributeKind::TextList => Value::TextList(names.clone()),
                AttributeKind::NumberMap => {
                    Value::NumberMap(names.iter().map(|name| (name.clone(), 1.0)).collect())
                }
            };
            let attributes = (0..self.attributes.len()).map(|attribute| {
                let is_blocked = self.rules.iter().any(|rule| matches!(&rule.kind, RuleKind::BlockList { attribute: list, .. } if *list == attribute));
                // Roles: everyone would play any.
                let is_free = is_blocked || self.role_attribute == Some(attribute) && self.attributes[attribute].kind == AttributeKind::TextList;
                let value = if is_free {
                    Value::TextList(Vec::new())
                } else if self.role_attribute == Some(attribute) && !seats.is_empty() {
                    // Everyone would play the role of one place in the teams.
                    let place = if at < 1000 { at } else { size + at / 1000 - 1 };
                    Value::Text(seats[place % seats.len()].clone())
                } else {
                    value(attribute)
                };
                (self.attributes[attribute].name.clone(), value)
            });
            Player {
                id: format!("p{at}").into(),
                attributes: attributes.collect(),
                latency: [("region".into(), 0.0)].into(),
            }
        };
        let first = (0..size).map(|at| player(at, if trial % 4 < 2 { 0 } else { at })).collect();
        let mut tickets = vec![Ticket { id: "t0".into(), created, players: first }];
        let others = self.max_players() - size;
        // Premades face premades.
        let twins = if trial % 4 >= 2 { others / size.max(1) } else { 0 };
        for at in 0..twins + others {
            let players = if at < twins { size } else { 1 };
            let number = 1000 * (at + 1);
            let players = (0..players).map(|player_at| player(number + player_at, at + 1)).collect();
            tickets.push(Ticket { id: format!("t{}", at + 1).into(), created: created + 1, players });
        }
        tickets
    }

    /// Returns a role for every place of a full match, team by team.
    fn role_of_each_place(&self) -> Vec<Arc<str>> {
        let mut places = Vec::new();
        for team in self.slots.iter().map(|slot| &self.teams[slot.team]) {
            let least = team.roles.iter().flat_map(|role| std::iter::repeat_n(&role.name, role.min));
            let more =
                team.roles.iter().flat_map(|role| std::iter::repeat_n(&role.name, role.max - role.min));
            places.extend(least.chain(more).take(team.max).cloned());
        }
        places
    }

    fn names_in_rules(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> =
            self.teams.iter().flat_map(|team| &team.roles).map(|role| role.name.clone()).collect();
        for rule in &self.rules {
            if let RuleKind::Comparison { reference: Some(Reference::Texts(texts)), .. }
            | RuleKind::Collection { reference: Some(Reference::Texts(texts)), .. } = &rule.kind
            {
                names.extend(texts.iter().cloned());
            }
        }
        names.extend(["x", "y", "z"].map(Arc::from));
        names.dedup();
        names
    }

    fn numbers_in_rules(&self) -> Vec<f64> {
        self.rules
            .iter()
            .filter_map(|rule| rule.reference.at(0.0))
            .flat_map(|number| [number, number + 1.0, number - 1.0])
            .take(8)
            .collect()
    }
}

/// How many different pools are invented for each party size.
const TRIALS: usize = 24;

fn lint_schedule(
    what: &str,
    position: Position,
    schedule: &Schedule,
    admits_more: Option<bool>,
    warnings: &mut Vec<Warning>,
) {
    let mut warn = |message: String| {
        warnings.push(Warning { position: Some(position), message: format!("{what}: {message}") })
    };
    for step in &schedule.steps {
        let before = if step.after == 0.0 { schedule.base } else { schedule.at(step.after.next_down()) };
        match (step.change, before) {
            _ if step.after == 0.0 => warn("a relaxation after 0 s replaces the first value".to_owned()),
            (Change::Set(value), Some(before)) if value == before => {
                warn(format!("the relaxation after {} s changes nothing: it is {value} already", step.after));
            }
            (Change::Set(value), Some(before))
                if admits_more.is_some_and(|more| (value > before) != more) && !what.ends_with("off") =>
            {
                warn(format!("after {} s it admits less than before ({value} after {before})", step.after));
            }
            (Change::Grow { by, limit, .. }, Some(before)) if (limit - before) * by <= 0.0 => {
                warn(format!(
                    "the relaxation after {} s changes nothing: its limit of {limit} is reached already",
                    step.after
                ));
            }
            _ => {}
        }
    }
}

fn lint_statement(statement: &Statement, warn: &mut impl FnMut(&str)) {
    match statement {
        Statement::Rule(_) => {}
        Statement::Not(part) => lint_statement(part, warn),
        Statement::And(parts) | Statement::Or(parts) | Statement::Xor(parts) => {
            for (at, part) in parts.iter().enumerate() {
                if let Statement::Not(inner) = part
                    && parts.contains(inner)
                {
                    match statement {
                        Statement::And(_) => warn("a rule and its opposite: nothing passes"),
                        _ => warn("a rule or its opposite: everything passes"),
                    }
                }
                if parts[..at].contains(part) {
                    warn("the same part is there twice");
                }
                lint_statement(part, warn);
            }
        }
    }
}
