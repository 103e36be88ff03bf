//! What the layers hold that nobody asked for.

use std::collections::BTreeSet;

use crate::document::Place;
use crate::layers::env_name;
use crate::problem::{Origin, Problem};
use crate::reader::State;

impl State {
    /// Notes everything unknown, with what was most likely meant.
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
        let in_file =
            |place: &Place, message, help| Problem { origin: Origin::file(path, place), message, help };
        let sections: BTreeSet<&str> = self.sections().collect();
        for (table, place) in document.tables.iter().filter(|(table, _)| !self.is_section(table)) {
            // An unknown section has spoken for those below it, and for its keys.
            if table.rsplit_once('.').is_none_or(|(above, _)| self.is_section(above)) {
                let help =
                    nearest(table, sections.iter().copied()).map(|near| format!("did you mean `[{near}]`?"));
                unknown.push(in_file(place, format!("[{table}]: no such section"), help));
            }
        }
        let is_known = |key: &String| self.read.contains_key(key) || self.templates.contains(key);
        for (key, entry) in document.entries.iter().filter(|(key, _)| !is_known(key)) {
            if key.rsplit_once('.').is_none_or(|(table, _)| self.is_section(table)) {
                unknown.push(in_file(&entry.place, format!("{key}: no such key"), self.suggestion(key)));
            }
        }
        unknown
    }

    fn unknown_variables(&self) -> Vec<Problem> {
        let variables: BTreeSet<String> = self.read.keys().map(|key| env_name(key)).collect();
        let unknown = self.layers.env.keys().filter(|name| !variables.contains(*name));
        let problems = unknown.map(|name| {
            let near = nearest(name, variables.iter().map(String::as_str));
            let help = near.map(|near| format!("did you mean `{near}`?")).or_else(|| {
                let container =
                    self.containers.iter().find(|path| name.starts_with(&format!("{}_", env_name(path))))?;
                Some(format!("only the file can name a table below `[{container}]`"))
            });
            Problem { origin: Origin::Env(name.clone()), message: "no such setting".to_owned(), help }
        });
        problems.collect()
    }

    /// Users may name tables so that two keys have one variable: `a-b` and `a_b`.
    fn ambiguous_variables(&self) -> Vec<Problem> {
        let keys = |name: &str| {
            self.read.keys().filter(|key| env_name(key) == name).map(String::as_str).collect::<Vec<_>>()
        };
        let meanings = self.layers.env.keys().map(|name| (name, keys(name)));
        let problems = meanings.filter(|(_, keys)| keys.len() > 1).map(|(name, keys)| Problem {
            origin: Origin::Env(name.clone()),
            message: format!("may mean {}", keys.join(" or ")),
            help: Some("give one of the tables another name, or set the key in the file".to_owned()),
        });
        problems.collect()
    }

    fn unknown_flags(&self) -> Vec<Problem> {
        let unknown = self.layers.flags.iter().filter(|(key, _)| !self.read.contains_key(*key));
        let problems = unknown.map(|(key, flag)| Problem {
            origin: Origin::Flag(flag.name.clone()),
            message: format!("{key}: no such key"),
            help: self.unnamed(key).or_else(|| self.suggestion(key)),
        });
        problems.collect()
    }

    /// What to do if the key is of a table that the file should have named.
    fn unnamed(&self, key: &str) -> Option<String> {
        let container = self.containers.iter().find(|path| key.starts_with(&format!("{path}.")))?;
        let name = key[container.len() + 1..].split('.').next()?;
        let table = format!("{container}.{name}");
        let is_new = !self.named.contains_key(&table) && table != key;
        is_new.then(|| format!("only the file can name a table: add `[{table}]` to it"))
    }

    /// All sections that there are.
    fn sections(&self) -> impl Iterator<Item = &str> {
        let of_keys = self.read.keys().filter_map(|key| Some(key.rsplit_once('.')?.0));
        of_keys.chain(self.containers.iter().map(String::as_str)).chain(self.named.keys().map(String::as_str))
    }

    fn is_section(&self, table: &str) -> bool {
        let below = format!("{table}.");
        self.sections().any(|section| section == table || section.starts_with(&below))
    }

    /// The known key most likely meant: the same name in another section, or one that is spelled nearly so.
    fn suggestion(&self, key: &str) -> Option<String> {
        let name = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let elsewhere = self.read.keys().find(|known| name(known) == name(key)).map(String::as_str);
        let known = self.read.keys().chain(&self.templates).map(String::as_str);
        let near = nearest(key, known).or(elsewhere)?;
        Some(format!("did you mean `{near}`?"))
    }
}

fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored =
        known.into_iter().map(|candidate| (strsim::damerau_levenshtein(wrong, candidate), candidate));
    let (distance, candidate) = scored.min()?;
    // What both begin with does not make them alike: long keys share whole tables.
    let shared = wrong.chars().zip(candidate.chars()).take_while(|(a, b)| a == b).count();
    let differing = wrong.chars().count() - shared;
    (distance <= 3.max(differing / 4)).then_some(candidate)
}
