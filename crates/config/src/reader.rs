//! Reads keys through the layers and keeps account of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use crate::document::Place;
use crate::layers::{Layers, env_name};
use crate::problem::{Origin, Problem, Problems};
use crate::setting::{Setting, Value};

/// What a section asks for its keys.
#[derive(Debug)]
pub struct Reader<'a> {
    state: &'a mut State,
    prefix: String,
}

#[derive(Debug)]
pub(crate) struct State {
    layers: Layers,
    read: BTreeMap<String, Origin>,
    effective: Vec<(String, Option<String>)>,
    problems: Vec<Problem>,
    /// Keys whose value was refused: what depends on them is not judged as well.
    refused: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn root(state: &'a mut State) -> Self {
        Self { state, prefix: String::new() }
    }

    /// Reads a section below this one.
    pub fn section<T: crate::Section>(&mut self, name: &str) -> T {
        let prefix = format!("{}{name}.", self.prefix);
        T::read(&mut Reader { state: self.state, prefix })
    }

    /// Reads a key that has a default.
    ///
    /// # Panics
    /// When the reference has no sound default for the key: a mistake in the program, which the test over the reference
    /// finds.
    pub fn get<T: Setting>(&mut self, name: &str) -> T {
        let key = format!("{}{name}", self.prefix);
        let given = self.given::<T>(&key).unwrap_or_else(|| {
            let default = self.state.layers.reference.entries.get(&key);
            let parsed = default.and_then(|entry| T::parse(&entry.value).ok());
            #[expect(clippy::expect_used, reason = "see # Panics")]
            parsed.expect("every key that is read has a sound default in the reference")
        });
        self.state.effective.push((key, Some(given.show())));
        given
    }

    /// Reads a key that may be absent.
    pub fn optional<T: Setting>(&mut self, name: &str) -> Option<T> {
        let key = format!("{}{name}", self.prefix);
        let given = self.given::<T>(&key);
        self.state.effective.push((key, given.as_ref().map(Setting::show)));
        given
    }

    /// Notes a mistake when the key's number is out of range.
    pub fn get_within<T: Setting + PartialOrd>(&mut self, name: &str, range: RangeInclusive<T>) -> T {
        let value: T = self.get(name);
        self.check(&[name], range.contains(&value), || {
            format!("must be from {} to {}, found {}", range.start().show(), range.end().show(), value.show())
        });
        value
    }

    /// Notes a mistake that one or several keys make together. The keys are names below this section; the message follows
    /// the first of them that was given.
    pub fn check(&mut self, names: &[&str], holds: bool, message: impl FnOnce() -> String) {
        let keys: Vec<String> = names.iter().map(|name| format!("{}{name}", self.prefix)).collect();
        if holds || keys.iter().any(|key| self.state.refused.contains(key)) {
            return;
        }
        let given = keys.iter().find(|key| self.origin(key) != Origin::Default).unwrap_or(&keys[0]);
        let problem =
            Problem { origin: self.origin(given), message: format!("{given}: {}", message()), help: None };
        self.state.problems.push(problem);
    }

    fn origin(&self, key: &str) -> Origin {
        self.state.read.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// The value of the topmost layer above the defaults that has the key, if it is sound.
    fn given<T: Setting>(&mut self, key: &str) -> Option<T> {
        let found = self.state.lookup(key);
        let origin = found.as_ref().map_or(Origin::Default, |(_, origin)| origin.clone());
        self.state.read.insert(key.to_owned(), origin);
        let (value, origin) = found?;
        match T::parse(&value) {
            Ok(value) => Some(value),
            Err(rejected) => {
                let found = if T::is_secret() { "something else".to_owned() } else { value.to_string() };
                let problem = Problem {
                    origin,
                    message: format!("{key}: expected {}, found {found}", T::expected()),
                    help: rejected.reason,
                };
                self.state.problems.push(problem);
                self.state.refused.insert(key.to_owned());
                None
            }
        }
    }
}

impl State {
    pub(crate) fn new(layers: Layers) -> Self {
        let mut problems = Vec::new();
        if let Some((path, document)) = &layers.file {
            problems.extend(document.syntax.iter().map(|(place, message)| Problem {
                origin: Origin::file(path, place),
                message: format!("not valid TOML: {message}"),
                help: None,
            }));
        }
        Self { layers, read: BTreeMap::new(), effective: Vec::new(), problems, refused: BTreeSet::new() }
    }

    fn lookup(&self, key: &str) -> Option<(Value, Origin)> {
        if let Some(flag) = self.layers.flags.get(key) {
            return Some((Value::Word(flag.value.clone()), Origin::Flag(flag.name.clone())));
        }
        let variable = env_name(key);
        if let Some(value) = self.layers.env.get(&variable) {
            return Some((Value::Word(value.clone()), Origin::Env(variable)));
        }
        let (path, document) = self.layers.file.as_ref()?;
        let entry = document.entries.get(key)?;
        Some((entry.value.clone(), Origin::file(path, &entry.place)))
    }

    pub(crate) fn finish(mut self) -> Result<Effective, Problems> {
        self.find_unknown();
        if self.problems.is_empty() {
            let entries = self.effective.into_iter().map(|(key, shown)| {
                let origin = self.read.remove(&key).unwrap_or(Origin::Default);
                (key, shown, origin)
            });
            return Ok(Effective(entries.collect()));
        }
        self.problems.sort_by_key(|problem| match problem.origin {
            Origin::File { line, column, .. } => (0, line, column),
            Origin::Env(_) => (1, 0, 0),
            Origin::Flag(_) => (2, 0, 0),
            Origin::Default => (3, 0, 0),
        });
        Err(Problems(self.problems))
    }

    /// What the layers hold that nobody asked for.
    fn find_unknown(&mut self) {
        let known: Vec<&str> = self.read.keys().map(String::as_str).collect();
        let mut unknown = Vec::new();
        if let Some((path, document)) = &self.layers.file {
            let in_file =
                |place: &Place, message, help| Problem { origin: Origin::file(path, place), message, help };
            let sections: BTreeSet<&str> =
                known.iter().filter_map(|key| Some(key.rsplit_once('.')?.0)).collect();
            let is_section = |table: &str| known.iter().any(|key| key.starts_with(&format!("{table}.")));
            for (table, place) in document.tables.iter().filter(|(table, _)| !is_section(table)) {
                let help =
                    nearest(table, sections.iter().copied()).map(|near| format!("did you mean `[{near}]`?"));
                unknown.push(in_file(place, format!("[{table}]: no such section"), help));
            }
            for (key, entry) in document.entries.iter().filter(|(key, _)| !self.read.contains_key(*key)) {
                // An unknown section has spoken for its keys.
                if key.rsplit_once('.').is_none_or(|(table, _)| is_section(table)) {
                    unknown.push(in_file(
                        &entry.place,
                        format!("{key}: no such key"),
                        suggestion(key, &known),
                    ));
                }
            }
        }
        let variables: Vec<String> = known.iter().map(|key| env_name(key)).collect();
        for name in self.layers.env.keys().filter(|name| !variables.contains(name)) {
            let near = nearest(name, variables.iter().map(String::as_str));
            unknown.push(Problem {
                origin: Origin::Env(name.clone()),
                message: "no such setting".to_owned(),
                help: near.map(|near| format!("did you mean `{near}`?")),
            });
        }
        for (key, flag) in self.layers.flags.iter().filter(|(key, _)| !self.read.contains_key(*key)) {
            unknown.push(Problem {
                origin: Origin::Flag(flag.name.clone()),
                message: format!("{key}: no such key"),
                help: suggestion(key, &known),
            });
        }
        self.problems.append(&mut unknown);
    }
}

/// The known key most likely meant: the same name in another section, or one that is spelled nearly so.
fn suggestion(key: &str, known: &[&str]) -> Option<String> {
    let name = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let elsewhere = known.iter().find(|known| name(known) == name(key)).copied();
    let near = nearest(key, known.iter().copied()).or(elsewhere)?;
    Some(format!("did you mean `{near}`?"))
}

fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored =
        known.into_iter().map(|candidate| (strsim::damerau_levenshtein(wrong, candidate), candidate));
    let (distance, candidate) = scored.min()?;
    (distance <= 3.max(wrong.len() / 4)).then_some(candidate)
}

/// What is in force, and where each value came from, as TOML with comments.
#[derive(Debug)]
pub struct Effective(Vec<(String, Option<String>, Origin)>);

impl Effective {
    /// Every key that is read, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _, _)| key.as_str())
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut current = "";
        for (key, shown, origin) in &self.0 {
            let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
            if section != current {
                writeln!(f, "{}[{section}]", if current.is_empty() { "" } else { "\n" })?;
                current = section;
            }
            match shown {
                Some(value) => writeln!(f, "{:<48} # {origin}", format!("{name} = {value}"))?,
                None => writeln!(f, "{:<48} # not set", format!("# {name} ="))?,
            }
        }
        Ok(())
    }
}
