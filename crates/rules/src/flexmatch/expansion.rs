//! Expansions: what changes while players wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::{Draft, as_number, to_toml};
use crate::document::{Data, Node};
use crate::fields::Fields;
use crate::mistake::Position;

/// The changes of one rule or team: by seconds, then by field of ours.
type Changes = BTreeMap<u64, BTreeMap<&'static str, String>>;

/// The changes of all rules and teams.
#[derive(Debug, Default)]
pub(super) struct Expansions {
    /// By `rules` or `teams`, and name.
    changes: BTreeMap<(String, String), Changes>,
    positions: BTreeMap<(String, String), Position>,
    written: RefCell<BTreeSet<(String, String)>>,
}

impl Expansions {
    pub(super) fn read(fields: &Fields<'_>, draft: &mut Draft) -> Self {
        let mut expansions = Self::default();
        for item in fields.list("expansions") {
            let Data::Table(entries) = &item.data else {
                fields.add_at(item.position, format!("expansions: expected objects, found {}", item.kind()));
                continue;
            };
            // A published example has several targets in one object: each goes with the steps after it.
            let mut target = None;
            for (key, node) in entries {
                match (key.as_str(), &node.data) {
                    ("target", Data::Text(text)) => target = Some((text.as_str(), node.position)),
                    ("steps", Data::List(steps)) => match target.take() {
                        Some((target, position)) => expansions.add(target, position, steps, fields, draft),
                        None => fields.add_at(node.position, "expansions: steps without a target"),
                    },
                    ("target" | "steps", _) => {
                        fields.add_at(node.position, format!("expansions: {key}: found {}", node.kind()))
                    }
                    _ => draft.note(node.position, format!("expansions: {key} is not known and not kept")),
                }
            }
            if entries.iter().filter(|(key, _)| key == "target").count() > 1 {
                draft
                    .note(item.position, "an expansion has several targets; each is kept with its own steps");
            }
        }
        expansions
    }

    fn add(
        &mut self,
        target: &str,
        position: Position,
        steps: &[Node],
        fields: &Fields<'_>,
        draft: &mut Draft,
    ) {
        let parsed = target.split_once('[').and_then(|(kind, rest)| {
            let (names, field) = rest.split_once(']')?;
            Some((kind.trim(), names, field.trim().strip_prefix('.')?))
        });
        let Some((kind @ ("rules" | "teams"), names, field)) = parsed else {
            draft.note(
                position,
                format!("the expansion of {target} is not kept: only fields of rules and teams can change"),
            );
            return;
        };
        let ours = match (kind, field) {
            ("teams", "minPlayers") => "min",
            ("rules", "maxDistance" | "maxLatency" | "maxCount") => "max",
            ("rules", "minDistance" | "minCount") => "min",
            ("rules", "referenceValue") => "reference",
            _ => {
                draft.note(position, format!("the expansion of {target} is not kept: {field} cannot change"));
                return;
            }
        };
        for step in steps {
            let step = Fields::open_lenient(fields.report(), step, format!("expansions: {target}"));
            step.required("waitTimeSeconds");
            step.required("value");
            let (Some(after), Some(value)) = (step.get("waitTimeSeconds"), step.get("value")) else {
                continue;
            };
            let Some(seconds) = as_number(after) else {
                step.add_at(
                    after.position,
                    format!("waitTimeSeconds: expected a number, found {}", after.kind()),
                );
                continue;
            };
            let after = seconds.max(0.0) as u64;
            if after as f64 != seconds {
                draft.note(
                    step.position(),
                    format!("the step of {target} after {seconds} s is read as after {after} s"),
                );
            }
            draft.note_unread(&step, &["waitTimeSeconds", "value"]);
            let Some(number) = as_number(value) else {
                let value = to_toml(value);
                let note =
                    format!("the step of {target} after {after} s is not kept: {value} is not a number");
                draft.note(step.position(), note);
                continue;
            };
            for name in names.split(',').map(str::trim) {
                let key = (kind.to_owned(), name.to_owned());
                self.positions.entry(key.clone()).or_insert(position);
                let at = self.changes.entry(key).or_default().entry(after).or_default();
                if let Some(earlier) = at.insert(ours, number.to_string()) {
                    draft.note(
                        position,
                        format!("{target} changes twice after {after} s; {number} is kept, not {earlier}"),
                    );
                }
            }
        }
    }

    /// Writes the relaxations of a rule or team. A rule's limit in milliseconds or a distance between latencies is written under its own name.
    pub(super) fn write(&self, kind: &str, name: &str, age: &str, draft: &mut Draft) {
        let key = (kind.to_owned(), name.to_owned());
        let Some(changes) = self.changes.get(&key) else { return };
        self.written.borrow_mut().insert(key);
        if age != "oldest" {
            draft.line(format!("age = \"{age}\""));
            if let Some(position) = self.positions.get(&(kind.to_owned(), name.to_owned())) {
                draft.note(
                    *position,
                    "expansions go by the newest ticket, FlexMatch's default, so a new ticket starts them again. Without `age` they go by the oldest, and waits are bounded",
                );
            }
        }
        draft.line("relax = [");
        for (after, fields) in changes {
            let fields: Vec<String> =
                fields.iter().map(|(field, value)| format!("{field} = {value}")).collect();
            draft.line(format!("  {{ after = {after}, {} }},", fields.join(", ")));
        }
        draft.line("]");
    }

    pub(super) fn note_unused(&self, draft: &mut Draft) {
        for (key, position) in &self.positions {
            if !self.written.borrow().contains(key) {
                draft.note(
                    *position,
                    format!("the expansion of {}[{}] is not kept: there is no such name", key.0, key.1),
                );
            }
        }
    }
}
