//! Reads the fields of a table. A mistake does not stop the reading: it is recorded, and the default is used.

use std::cell::RefCell;

use crate::document::{Data, Node};
use crate::mistake::{Mistake, Position, suggest};

/// Collects mistakes.
#[derive(Debug, Default)]
pub(crate) struct Report {
    mistakes: RefCell<Vec<Mistake>>,
}

impl Report {
    pub(crate) fn add(&self, position: Position, message: impl Into<String>) {
        self.mistakes.borrow_mut().push(Mistake::new(position, message.into()));
    }

    pub(crate) fn add_unknown<'a>(
        &self,
        position: Position,
        message: impl Into<String>,
        unknown: &str,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) {
        let help = suggest(unknown, known);
        self.mistakes.borrow_mut().push(Mistake { position, message: message.into(), help });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mistakes.borrow().is_empty()
    }

    pub(crate) fn into_mistakes(self) -> Vec<Mistake> {
        self.mistakes.into_inner()
    }
}

/// The fields of one table.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    report: &'a Report,
    node: &'a Node,
    /// What the table is, for messages: `rules.skill`.
    path: String,
    entries: &'a [(String, Node)],
    read: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    /// Opens a table. Records a mistake if the node is something else.
    pub(crate) fn open(report: &'a Report, node: &'a Node, path: impl Into<String>) -> Self {
        let fields = Self::open_lenient(report, node, path);
        for (at, (name, entry)) in fields.entries.iter().enumerate() {
            if fields.entries[..at].iter().any(|(earlier, _)| earlier == name) {
                report.add(entry.position, format!("{}: `{name}` appears twice", fields.path));
            }
        }
        fields
    }

    /// Opens a table in which a field may be several times.
    pub(crate) fn open_lenient(report: &'a Report, node: &'a Node, path: impl Into<String>) -> Self {
        let path = path.into();
        let entries: &[(String, Node)] = match &node.data {
            Data::Table(entries) => entries,
            _ => {
                report.add(node.position, format!("{path}: expected a table, found {}", node.kind()));
                &[]
            }
        };
        Self { report, node, path, entries, read: RefCell::default() }
    }

    pub(crate) fn report(&self) -> &'a Report {
        self.report
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn position(&self) -> Position {
        self.node.position
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn get(&self, name: &'static str) -> Option<&'a Node> {
        self.read.borrow_mut().push(name);
        self.entries.iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// Records a mistake of this table.
    pub(crate) fn add(&self, message: impl AsRef<str>) {
        self.report.add(self.node.position, format!("{}: {}", self.path, message.as_ref()));
    }

    pub(crate) fn add_at(&self, position: Position, message: impl AsRef<str>) {
        self.report.add(position, format!("{}: {}", self.path, message.as_ref()));
    }

    fn expected(&self, name: &str, node: &Node, what: &str) {
        self.add_at(node.position, format!("{name}: expected {what}, found {}", node.kind()));
    }

    pub(crate) fn required(&self, name: &'static str) -> Option<&'a Node> {
        let found = self.get(name);
        if found.is_none() {
            self.add(format!("`{name}` is required"));
        }
        found
    }

    pub(crate) fn number(&self, name: &'static str) -> Option<f64> {
        let node = self.get(name)?;
        match &node.data {
            Data::Number(number) => Some(*number),
            _ => {
                self.expected(name, node, "a number");
                None
            }
        }
    }

    /// Reads a whole number within a range.
    pub(crate) fn count(&self, name: &'static str, min: usize, max: usize) -> Option<usize> {
        let node = self.get(name)?;
        match &node.data {
            Data::Number(number)
                if number.fract() == 0.0 && *number >= min as f64 && *number <= max as f64 =>
            {
                Some(*number as usize)
            }
            _ => {
                self.expected(name, node, &format!("a whole number from {min} to {max}"));
                None
            }
        }
    }

    pub(crate) fn text(&self, name: &'static str) -> Option<&'a str> {
        let node = self.get(name)?;
        match &node.data {
            Data::Text(text) => Some(text),
            _ => {
                self.expected(name, node, "a text");
                None
            }
        }
    }

    pub(crate) fn flag(&self, name: &'static str) -> Option<bool> {
        let node = self.get(name)?;
        match &node.data {
            Data::Bool(flag) => Some(*flag),
            _ => {
                self.expected(name, node, "true or false");
                None
            }
        }
    }

    /// Reads one of several words.
    pub(crate) fn choice<T: Copy>(&self, name: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(name)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let position = self.get(name).map_or(self.position(), |node| node.position);
            let known = words.iter().map(|(word, _)| *word);
            self.report.add_unknown(
                position,
                format!("{}: {name}: unknown value: {text}", self.path),
                text,
                known,
            );
        }
        found
    }

    /// Reads a list. A single value is a list of one.
    pub(crate) fn list(&self, name: &'static str) -> &'a [Node] {
        self.get(name).map_or(&[], |node| match &node.data {
            Data::List(items) => items,
            _ => std::slice::from_ref(node),
        })
    }

    pub(crate) fn texts(&self, name: &'static str) -> Vec<String> {
        let mut texts = Vec::new();
        for item in self.list(name) {
            match &item.data {
                Data::Text(text) => texts.push(text.clone()),
                _ => self.expected(name, item, "a text"),
            }
        }
        texts
    }

    /// Reads the tables below `name`, in the order of the document.
    pub(crate) fn tables(&self, name: &'static str) -> Vec<(&'a str, Fields<'a>)> {
        let Some(node) = self.get(name) else { return Vec::new() };
        let Data::Table(entries) = &node.data else {
            self.expected(name, node, "a table");
            return Vec::new();
        };
        entries
            .iter()
            .map(|(key, node)| {
                let path = if self.path.is_empty() {
                    format!("{name}.{key}")
                } else {
                    format!("{}.{name}.{key}", self.path)
                };
                (key.as_str(), Fields::open(self.report, node, path))
            })
            .collect()
    }

    /// Reads a list of tables.
    pub(crate) fn items(&self, name: &'static str) -> Vec<Fields<'a>> {
        let path = |at: usize| {
            if self.path.is_empty() {
                format!("{name} {}", at + 1)
            } else {
                format!("{}: {name} {}", self.path, at + 1)
            }
        };
        let list = self.list(name).iter().enumerate();
        list.map(|(at, node)| Fields::open(self.report, node, path(at))).collect()
    }

    /// Records the fields that nothing has read.
    pub(crate) fn finish(&self) {
        let read = self.read.borrow();
        for (name, node) in self.entries.iter().filter(|(name, _)| !read.contains(&name.as_str())) {
            let path = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
            self.report.add_unknown(
                node.position,
                format!("{path}no such field: {name}"),
                name,
                read.iter().copied(),
            );
        }
    }
}
