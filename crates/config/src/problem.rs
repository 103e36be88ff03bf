//! Mistakes in a configuration, and where they are.

use std::fmt;
use std::path::PathBuf;

use crate::document::Position;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize, column: usize },
    Env(String),
    Flag(String),
}

impl Origin {
    pub(crate) fn file(path: &std::path::Path, position: &Position) -> Self {
        Self::File { path: path.to_owned(), line: position.line, column: position.column }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column, .. } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One mistake. It does not quote the file: text that cannot be parsed may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub origin: Origin,
    /// What is wrong and what was expected.
    pub message: String,
    pub help: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)?;
        if let Some(help) = &self.help {
            write!(f, "\n    {help}")?;
        }
        Ok(())
    }
}

/// All mistakes, in the order of their lines in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        writeln!(f, "the configuration has {count} {}:", if count == 1 { "mistake" } else { "mistakes" })?;
        for problem in &self.0 {
            writeln!(f, "\n{problem}")?;
        }
        write!(f, "\nNothing was started. `playhouse config` prints every key with its meaning and default.")
    }
}

impl std::error::Error for Problems {}
