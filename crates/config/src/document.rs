//! A TOML text as a flat list of keys with their positions.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::setting::Value;

/// Stands in the reference for the name that a user gives a table.
pub(crate) const TEMPLATE: &str = "NAME";

/// A parsed TOML text. `[db] url = …` becomes the key `db.url`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    pub(crate) settings: BTreeMap<String, RawSetting>,
    /// All tables by path, so that an unknown table is noticed even when it is empty.
    pub(crate) tables: BTreeMap<String, Position>,
    pub(crate) syntax: Vec<(Position, String)>,
}

/// A value that has not been parsed into its type yet.
#[derive(Clone, Debug)]
pub(crate) struct RawSetting {
    pub(crate) value: Value,
    pub(crate) position: Position,
}

/// A position in a text. Both numbers start at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Document {
    /// Parses as much of the text as possible and keeps the rest as syntax errors.
    pub(crate) fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let position = Position::new(text, error.span().unwrap_or_default());
            document.syntax.push((position, error.message().to_owned()));
        }
        document.add_table(text, "", table.get_ref());
        document
    }

    /// Moves everything below a table.
    pub(crate) fn below(self, table: &str) -> Self {
        let key = |key: String| format!("{table}.{key}");
        Self {
            settings: self.settings.into_iter().map(|(name, setting)| (key(name), setting)).collect(),
            tables: self.tables.into_iter().map(|(name, position)| (key(name), position)).collect(),
            syntax: self.syntax,
        }
    }

    fn add_table(&mut self, text: &str, path: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let segment = segment(name.get_ref());
            let key = if path.is_empty() { segment } else { format!("{path}.{segment}") };
            match value.get_ref() {
                DeValue::Table(inner) => {
                    self.tables.insert(key.clone(), Position::new(text, name.span()));
                    self.add_table(text, &key, inner);
                }
                leaf => {
                    let setting =
                        RawSetting { value: to_value(leaf), position: Position::new(text, name.span()) };
                    self.settings.insert(key, setting);
                }
            }
        }
    }
}

/// Formats a name as one segment of a key. Quotes it if it contains dots or other special characters.
fn segment(name: &str) -> String {
    let is_bare =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare { name.to_owned() } else { format!("{name:?}") }
}

/// Returns the last segment of `key` if the key is directly below `path`.
pub(crate) fn child_of<'a>(path: &str, key: &'a str) -> Option<&'a str> {
    let name = key.strip_prefix(path)?.strip_prefix('.')?;
    let is_single = if name.starts_with('"') { segment_end(name) == name.len() } else { !name.contains('.') };
    is_single.then_some(name)
}

/// Returns where a quoted segment ends.
fn segment_end(quoted: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in quoted.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    quoted.len()
}

impl Position {
    fn new(text: &str, span: Range<usize>) -> Self {
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

/// Returns all keys of a reference document, each with whether it has a default. Keys without a default are commented out
/// (`# key = …`).
pub fn reference_keys(text: &str) -> Vec<(String, bool)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in text.lines() {
        if let Some(name) = header(line) {
            section = format!("{name}.");
        } else if let Some((name, has_default)) = parse_key(line) {
            keys.push((format!("{section}{name}"), has_default));
        }
    }
    keys
}

/// Converts the reference into a file that sets every key: commented-out keys take the value of their comment, and each table
/// that users name appears once, as `name`.
pub fn reference_with_all_keys(reference: &str) -> String {
    let text = uncommented(reference);
    let lines = text.lines().map(|line| match header(line) {
        Some(_) => format!("{}\n", line.replace(&format!(".{TEMPLATE}"), ".name")),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Removes the comment signs from keys that are commented out.
pub(crate) fn uncommented(reference: &str) -> String {
    let lines = reference.lines().map(|line| match parse_key(line) {
        Some((_, false)) => format!("{}\n", line.trim().trim_start_matches("# ")),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Returns the name in a line `[name]`.
fn header(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.strip_suffix(']')
}

/// Returns the key of a line, and whether the line is not commented out.
fn parse_key(line: &str) -> Option<(&str, bool)> {
    let line = line.trim();
    let (bare, is_active) = match line.strip_prefix("# ") {
        Some(rest) => (rest, false),
        None => (line, true),
    };
    let (name, _) = bare.split_once(" = ")?;
    let is_key = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    is_key.then_some((name, is_active))
}
