//! Tables that are read after the start, from a text that is not the configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Section;
use crate::document::{Document, Position};
use crate::layers::Layers;
use crate::problem::{Origin, Problem, Problems};
use crate::reader::{Reader, State, check_table_name};

/// Reads further tables of a kind that users name, with the defaults and checks of those in the file. See
/// [`Reader::table_reader`].
#[derive(Clone, Debug)]
pub struct TableReader {
    pub(crate) reference: Arc<Document>,
    pub(crate) examples: Arc<Document>,
    /// The file, for the `NAME` table of this kind.
    pub(crate) file: Option<Arc<(PathBuf, Document)>>,
    /// The path of the tables: `matchmaking.profiles`.
    pub(crate) path: String,
    /// The start of their keys in the reference: `matchmaking.profiles.NAME.`.
    pub(crate) template: String,
    pub(crate) texts: BTreeMap<String, String>,
}

impl TableReader {
    /// Returns the tables that the configuration has, as texts. They contain what is set in any layer, and no defaults.
    pub const fn texts(&self) -> &BTreeMap<String, String> {
        &self.texts
    }

    /// Adds a table to those of the configuration, and reads it. Fails with all mistakes.
    pub fn add<T: Section>(&mut self, name: &str, text: &str) -> Result<T, Problems> {
        let read = self.read(name, &format!("{}.{name}", self.path), text)?;
        self.texts.insert(name.to_owned(), text.to_owned());
        Ok(read)
    }

    /// Reads a table from a text without a header: `players = 2`. Fails with all mistakes. `source` names the text in them.
    pub fn read<T: Section>(&self, name: &str, source: &str, text: &str) -> Result<T, Problems> {
        self.read_with(name, source, text, T::read)
    }

    /// Reads a table as [`read`](Self::read) does, with checks that need more than the table.
    pub fn read_with<T>(
        &self,
        name: &str,
        source: &str,
        text: &str,
        read: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> Result<T, Problems> {
        let origin = Origin::file(Path::new(source), &Position { line: 1, column: 1 });
        if let Err(expected) = check_table_name(name) {
            let message = format!("{expected}, found {name}");
            return Err(Problems(vec![Problem { origin, message, help: None }]));
        }
        let table = format!("{}.{name}", self.path);
        let mut layers = Layers::of_documents((*self.reference).clone(), (*self.examples).clone());
        layers.file = Some((PathBuf::from(source), Document::parse(text).below(&table)));
        layers.templates = self.file.clone();
        let mut state = State::new(layers);
        state.containers.insert(self.path.clone());
        state.named_tables.insert(table.clone(), origin);
        let read = read(&mut Reader::of_table(&mut state, &format!("{table}."), &self.template));
        state.finish().map(|_| read)
    }
}
