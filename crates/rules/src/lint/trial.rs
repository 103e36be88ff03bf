//! Tries a rule set with invented tickets.

use std::sync::Arc;

use super::Warning;
use crate::matcher::Options;
use crate::model::{AttributeKind, Reference, RuleKind, RuleSet, Value};
use crate::ticket::{Player, Ticket};

/// How many different pools are invented for each party size.
const TRIALS: usize = 24;

impl RuleSet {
    /// Tries each party size with invented tickets: if none of several pools yields a match, nothing a player does will.
    pub(super) fn lint_by_trial(&self, warnings: &mut Vec<Warning>) {
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
            let reason = "no match is possible in any of the generated test pools, however long tickets wait: look for rules that contradict each other";
            warnings.push(Warning { position: None, message: reason.to_owned() });
        } else {
            for size in failed {
                let message = format!(
                    "no match is possible with a party of {size} in any of the generated test pools: set a lower max_party, or make room for such a party"
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
