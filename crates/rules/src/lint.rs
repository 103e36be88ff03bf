//! Finds what is valid and yet cannot work: parties without a place, roles that nobody fills, relaxations without effect.

mod trial;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::mistake::Position;
use crate::model::{AttributeKind, Change, Party, RuleKind, RuleSet, Schedule, Statement, Value};

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
        self.lint_by_trial(&mut warnings);
        warnings.sort();
        warnings
    }

    /// Returns the relaxations that no ticket lives to see.
    pub fn lint_lifetime(&self, lifetime: Duration) -> Vec<Warning> {
        let lifetime = lifetime.as_secs_f64();
        let mut warnings = Vec::new();
        let mut warn = |what: String, position: Position, schedule: &Schedule| {
            for step in schedule.steps.iter().filter(|step| step.after >= lifetime) {
                let message = format!(
                    "{what}: the relaxation after {} s has no effect: tickets live for {lifetime} s",
                    step.after
                );
                warnings.push(Warning { position: Some(position), message });
            }
        };
        for team in &self.teams {
            warn(format!("teams.{}: min", team.name), team.position, &team.min);
        }
        for rule in &self.rules {
            for (name, schedule) in rule.schedules() {
                warn(format!("rules.{}: {name}", rule.name), rule.position, schedule);
            }
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
}

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
                    warn("the same part appears twice");
                }
                lint_statement(part, warn);
            }
        }
    }
}
