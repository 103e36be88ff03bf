//! Unknown keys: those in the layers that no section reads.

use std::collections::BTreeSet;

use crate::document::Position;
use crate::layers::env_name;
use crate::problem::{Origin, Problem};
use crate::reader::State;
use crate::renamed::{new_key, new_variable};

impl State {
    /// Records all unknown keys, each with the most similar known one.
    pub(crate) fn find_unknown(&mut self) {
        let mut found = self.unknown_in_file();
        found.extend(self.unknown_variables());
        found.extend(self.ambiguous_variables());
        found.extend(self.unknown_flags());
        self.problems.append(&mut found);
    }

    fn unknown_in_file(&self) -> Vec<Problem> {
        let mut unknown = Vec::new();
        let Some((path, document)) = &self.layers.file else { return unknown };
        let in_file = |position: &Position, message, help| Problem {
            origin: Origin::file(path, position),
            message,
            help,
        };
        let sections: BTreeSet<&str> = self.sections().collect();
        for (table, position) in document.tables.iter().filter(|(table, _)| !self.is_section(table)) {
            // The report of an unknown section also covers its keys and the sections below it.
            if table.rsplit_once('.').is_none_or(|(above, _)| self.is_section(above)) {
                let help = self.renamed_below(table, document.settings.keys()).or_else(|| {
                    nearest(table, sections.iter().copied()).map(|near| format!("did you mean `[{near}]`?"))
                });
                unknown.push(in_file(position, format!("[{table}]: no such section"), help));
            }
        }
        let is_known = |key: &String| self.read.contains_key(key) || self.templates.contains(key);
        for (key, setting) in document.settings.iter().filter(|(key, _)| !is_known(key)) {
            if key.rsplit_once('.').is_none_or(|(table, _)| self.is_section(table)) {
                unknown.push(in_file(&setting.position, format!("{key}: no such key"), self.suggestion(key)));
            }
        }
        unknown
    }

    fn unknown_variables(&self) -> Vec<Problem> {
        let variables: BTreeSet<String> = self.read.keys().map(|key| env_name(key)).collect();
        let unknown = self.layers.env.keys().filter(|name| !variables.contains(*name));
        let problems = unknown.map(|name| {
            let renamed = new_variable(self.layers.renamed, name);
            let renamed = renamed.map(|new| format!("`{name}` is now `{new}`"));
            let near = || nearest(name, variables.iter().map(String::as_str));
            let help =
                renamed.or_else(|| near().map(|near| format!("did you mean `{near}`?"))).or_else(|| {
                    let container = self
                        .containers
                        .iter()
                        .find(|path| name.starts_with(&format!("{}_", env_name(path))))?;
                    Some(format!("only the file can name a table below `[{container}]`"))
                });
            Problem { origin: Origin::Env(name.clone()), message: "no such setting".to_owned(), help }
        });
        problems.collect()
    }

    /// Finds variables that stand for two keys, because users named two tables alike: `a-b` and `a_b`.
    fn ambiguous_variables(&self) -> Vec<Problem> {
        let keys = |name: &str| {
            self.read.keys().filter(|key| env_name(key) == name).map(String::as_str).collect::<Vec<_>>()
        };
        let meanings = self.layers.env.keys().map(|name| (name, keys(name)));
        let problems = meanings.filter(|(_, keys)| keys.len() > 1).map(|(name, keys)| Problem {
            origin: Origin::Env(name.clone()),
            message: format!("is ambiguous: {}", keys.join(" or ")),
            help: Some("give one of the tables another name, or set the key in the file".to_owned()),
        });
        problems.collect()
    }

    fn unknown_flags(&self) -> Vec<Problem> {
        let unknown = self.layers.flags.iter().filter(|(key, _)| !self.read.contains_key(*key));
        let problems = unknown.map(|(key, flag)| Problem {
            origin: Origin::Flag(flag.name.clone()),
            message: format!("{key}: no such key"),
            help: self.renamed(key).or_else(|| self.missing_table_help(key)).or_else(|| self.suggestion(key)),
        });
        problems.collect()
    }

    /// Returns the advice for a key of a table that the file does not have.
    fn missing_table_help(&self, key: &str) -> Option<String> {
        let container = self.containers.iter().find(|path| key.starts_with(&format!("{path}.")))?;
        let name = key[container.len() + 1..].split('.').next()?;
        let table = format!("{container}.{name}");
        let is_new = !self.named_tables.contains_key(&table) && table != key;
        is_new.then(|| format!("only the file can name a table: add `[{table}]` to it"))
    }

    /// Returns all known sections.
    fn sections(&self) -> impl Iterator<Item = &str> {
        let of_keys = self.read.keys().filter_map(|key| Some(key.rsplit_once('.')?.0));
        of_keys
            .chain(self.containers.iter().map(String::as_str))
            .chain(self.named_tables.keys().map(String::as_str))
    }

    fn is_section(&self, table: &str) -> bool {
        let below = format!("{table}.");
        self.sections().any(|section| section == table || section.starts_with(&below))
    }

    /// Says what a key of an earlier version is called now.
    fn renamed(&self, key: &str) -> Option<String> {
        new_key(self.layers.renamed, key).map(|new| format!("`{key}` is now `{new}`"))
    }

    /// Says the same of all keys of a section that no longer exists.
    fn renamed_below<'a>(&self, table: &str, keys: impl Iterator<Item = &'a String>) -> Option<String> {
        let below = format!("{table}.");
        let renamed: Vec<String> =
            keys.filter(|key| key.starts_with(&below)).filter_map(|key| self.renamed(key)).collect();
        (!renamed.is_empty()).then(|| renamed.join("; "))
    }

    /// Suggests the known key most likely meant: its new name, one with a similar spelling, or the same name in another section.
    fn suggestion(&self, key: &str) -> Option<String> {
        if let Some(renamed) = self.renamed(key) {
            return Some(renamed);
        }
        let name = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let elsewhere = self.read.keys().find(|known| name(known) == name(key)).map(String::as_str);
        let known = self.read.keys().chain(&self.templates).map(String::as_str);
        let near = nearest(key, known).or(elsewhere)?;
        Some(format!("did you mean `{near}`?"))
    }
}

fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored =
        known.into_iter().map(|candidate| (strsim::damerau_levenshtein(unknown, candidate), candidate));
    let (distance, candidate) = scored.min()?;
    // A common prefix does not make two keys similar: long keys share whole tables.
    let shared = unknown.chars().zip(candidate.chars()).take_while(|(a, b)| a == b).count();
    let differing = unknown.chars().count() - shared;
    (distance <= 3.max(differing / 4)).then_some(candidate)
}
