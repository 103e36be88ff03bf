//! A TOML or JSON document with the position of every value.

mod json;

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::mistake::{Mistake, Mistakes, Position};

/// A value and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) position: Position,
    pub(crate) data: Data,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the document. JSON may have a key several times.
    Table(Vec<(String, Node)>),
    /// A value that no rule set has: a date, `null`.
    Other(String),
}

impl Node {
    /// Parses a document. A text that begins with `{` is JSON, any other TOML.
    pub(crate) fn parse(text: &str) -> Result<Self, Mistakes> {
        if is_json(text) { json::parse(text) } else { parse_toml(text) }
    }

    /// Names the kind of the value for a message.
    pub(crate) fn kind(&self) -> String {
        match &self.data {
            Data::Bool(flag) => flag.to_string(),
            Data::Number(number) => number.to_string(),
            Data::Text(text) => format!("{text:?}"),
            Data::List(_) => "a list".to_owned(),
            Data::Table(_) => "a table".to_owned(),
            Data::Other(text) => text.clone(),
        }
    }
}

/// Returns whether the text is JSON: its first character that is neither space nor comment is a brace.
pub(crate) fn is_json(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("//"))
        .is_some_and(|line| line.starts_with('{'))
}

fn parse_toml(text: &str) -> Result<Node, Mistakes> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let start = Position { line: 1, column: 1 };
        return Ok(Node { position: start, data: from_table(text, table.get_ref()) });
    }
    let mistake = |error: &toml::de::Error| {
        let at = Position::of(text, error.span().unwrap_or_default());
        Mistake::new(at, format!("not valid TOML: {}", error.message()))
    };
    Err(Mistakes::new(errors.iter().map(mistake).collect()))
}

fn from_table(text: &str, table: &DeTable<'_>) -> Data {
    let mut entries: Vec<(usize, String, Node)> = table
        .iter()
        .map(|(name, value)| {
            let node = Node { position: Position::of(text, name.span()), data: from_value(text, value) };
            (name.span().start, name.get_ref().to_string(), node)
        })
        .collect();
    entries.sort_by_key(|(start, ..)| *start);
    Data::Table(entries.into_iter().map(|(_, name, node)| (name, node)).collect())
}

fn from_value(text: &str, value: &Spanned<DeValue<'_>>) -> Data {
    match value.get_ref() {
        DeValue::String(found) => Data::Text(found.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Data::Other(number.to_string()), |number| Data::Number(number as f64)),
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Data::Number(number),
            _ => Data::Other(number.to_string()),
        },
        DeValue::Boolean(flag) => Data::Bool(*flag),
        DeValue::Datetime(time) => Data::Other(time.to_string()),
        DeValue::Array(items) => {
            let node = |item: &Spanned<DeValue<'_>>| Node {
                position: Position::of(text, item.span()),
                data: from_value(text, item),
            };
            Data::List(items.iter().map(node).collect())
        }
        DeValue::Table(table) => from_table(text, table),
    }
}

impl Position {
    pub(crate) fn of(text: &str, span: Range<usize>) -> Self {
        let offset =
            (0..=span.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}
