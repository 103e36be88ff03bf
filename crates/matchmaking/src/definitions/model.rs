//! Versions of rule sets, profiles and queues: pure types.

use std::fmt;

use base::Timestamp;

/// What a definition defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DefinitionKind {
    RuleSet,
    Profile,
    Queue,
}

impl DefinitionKind {
    pub const ALL: [Self; 3] = [Self::RuleSet, Self::Profile, Self::Queue];

    /// Returns its name in URLs, JSON, SQL and commands.
    pub const fn word(self) -> &'static str {
        match self {
            Self::RuleSet => "rule-set",
            Self::Profile => "profile",
            Self::Queue => "queue",
        }
    }

    /// Returns its name in sentences.
    pub const fn title(self) -> &'static str {
        match self {
            Self::RuleSet => "rule set",
            Self::Profile => "profile",
            Self::Queue => "queue",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// The identity of a definition. Displays as `rule set ranked`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefinitionKey {
    pub kind: DefinitionKind,
    pub name: String,
}

impl DefinitionKey {
    pub fn new(kind: DefinitionKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for DefinitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.title(), self.name)
    }
}

/// The content of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// This text.
    Text(String),
    /// The definition of the configuration file.
    File,
    /// Nothing: the definition is removed, whatever the configuration file has.
    Removed,
}

impl Content {
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Text(_) => "set",
            Self::File => "file",
            Self::Removed => "removed",
        }
    }

    pub(super) fn from_row(word: &str, text: String) -> Option<Self> {
        match word {
            "set" => Some(Self::Text(text)),
            "file" => Some(Self::File),
            "removed" => Some(Self::Removed),
            _ => None,
        }
    }
}

/// One stored version of a definition. Version 0 is the one of the configuration file, which is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub key: DefinitionKey,
    /// Counts the changes of this definition, from 1.
    pub version: i64,
    /// Counts the changes of all definitions, from 1.
    pub revision: i64,
    pub content: Content,
    /// The operator who made the change.
    pub author: String,
    pub note: Option<String>,
    pub created_at: Timestamp,
}
