//! A TOML text as flat keys with their places.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::setting::Value;

/// What stands in the reference for the name that a user gives a table.
pub(crate) const TEMPLATE: &str = "NAME";

/// A parsed TOML text: `[db] url = …` is the key `db.url`.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Tables by their path, so that an unknown one is noticed even when it is empty.
    pub(crate) tables: BTreeMap<String, Place>,
    pub(crate) syntax: Vec<(Place, String)>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// Where something stands in a text; both numbers start at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Document {
    /// Reads a text as far as it can be read; what cannot be is kept as a syntax problem.
    pub(crate) fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let place = Place::of(text, error.span().unwrap_or_default());
            document.syntax.push((place, error.message().to_owned()));
        }
        document.add_table(text, "", table.get_ref());
        document
    }

    fn add_table(&mut self, text: &str, path: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let segment = segment(name.get_ref());
            let key = if path.is_empty() { segment } else { format!("{path}.{segment}") };
            match value.get_ref() {
                DeValue::Table(inner) => {
                    self.tables.insert(key.clone(), Place::of(text, name.span()));
                    self.add_table(text, &key, inner);
                }
                leaf => {
                    let entry = Entry { value: to_value(leaf), place: Place::of(text, name.span()) };
                    self.entries.insert(key, entry);
                }
            }
        }
    }
}

/// A name as a part of a key: in quotes where it would otherwise be taken for several.
fn segment(name: &str) -> String {
    let is_bare =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare { name.to_owned() } else { format!("{name:?}") }
}

/// The part of a key directly below `path`, if the key is that and no more.
pub(crate) fn child_of<'a>(path: &str, key: &'a str) -> Option<&'a str> {
    let name = key.strip_prefix(path)?.strip_prefix('.')?;
    let is_one = if name.starts_with('"') { segment_end(name) == name.len() } else { !name.contains('.') };
    is_one.then_some(name)
}

/// Where a part in quotes ends.
fn segment_end(quoted: &str) -> usize {
    let mut escaped = false;
    for (at, c) in quoted.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    quoted.len()
}

impl Place {
    fn of(text: &str, span: Range<usize>) -> Self {
        let offset =
            (0..=span.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

fn to_value(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::Other(number.to_string()), Value::Integer),
        DeValue::Float(number) => {
            number.as_str().parse().map_or_else(|_| Value::Other(number.to_string()), Value::Float)
        }
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Datetime(time) => Value::Other(time.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(Spanned::get_ref).map(to_value).collect()),
        DeValue::Table(_) => Value::Other("a table".to_owned()),
    }
}

/// All keys of a reference document: those with a default, and those that are commented out (`# key = …`) because they have
/// none. The second part of each pair says whether the key has a default.
pub fn reference_keys(text: &str) -> Vec<(String, bool)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in text.lines() {
        if let Some(name) = header(line) {
            section = format!("{name}.");
        } else if let Some((name, has_default)) = key_of(line) {
            keys.push((format!("{section}{name}"), has_default));
        }
    }
    keys
}

/// The reference as a file that gives every key: what is commented out is given as its comment shows it, and each table that
/// users name is there once, under the name `name`.
pub fn every_key(reference: &str) -> String {
    let text = uncommented(reference);
    let lines = text.lines().map(|line| match header(line) {
        Some(_) => format!("{}\n", line.replace(&format!(".{TEMPLATE}"), ".name")),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// The text with all keys that were commented out.
pub(crate) fn uncommented(reference: &str) -> String {
    let lines = reference.lines().map(|line| match key_of(line) {
        Some((_, false)) => format!("{}\n", line.trim().trim_start_matches("# ")),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// `[name]`
fn header(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.strip_suffix(']')
}

/// The key of a line, and whether it is in force.
fn key_of(line: &str) -> Option<(&str, bool)> {
    let line = line.trim();
    let (bare, in_force) = match line.strip_prefix("# ") {
        Some(rest) => (rest, false),
        None => (line, true),
    };
    let (name, _) = bare.split_once(" = ")?;
    let is_key = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    is_key.then_some((name, in_force))
}
