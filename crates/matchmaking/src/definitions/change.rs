//! Changes of definitions, and what operators read of them.

use base::error::Coded;
use base::{Code, Timestamp};

use super::model::{Content, Definition, DefinitionKey, DefinitionKind};
use super::topic::{AllDefinitions, DefinitionsChanged};
use super::{Definitions, diff, store};
use crate::config::DefinitionMistake;

/// How often a change is attempted while others get their revision first.
const ATTEMPTS: usize = 8;
/// The largest text of a definition.
const MAX_TEXT: usize = 256 * 1024;

/// The errors of definitions.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DefinitionError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    NotFound(String),
    #[error(
        "{key} is at version {current}, but you expected {expected}: see what changed with `playhouse rules history`, then \
         decide"
    )]
    Conflict { key: DefinitionKey, current: i64, expected: i64 },
    #[error("{}", .0.join("\n"))]
    Mistakes(Vec<String>),
    #[error("other changes came first, several times in a row; try again")]
    Contended,
    #[error("the database does not answer; try again")]
    Database(#[from] db::Error),
}

impl Coded for DefinitionError {
    fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::NotFound(_) => Code::NotFound,
            Self::Conflict { .. } => Code::Conflict,
            Self::Mistakes(_) => Code::Unprocessable,
            Self::Contended => Code::Unavailable,
            Self::Database(error) => error.code(),
        }
    }
}

/// The new content of a definition.
#[derive(Clone, Debug)]
pub(crate) enum NewContent {
    Text(String),
    Removed,
    /// The content of an earlier version. Version 0 is the configuration file's.
    Version(i64),
}

/// A change that an operator requests.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: DefinitionKey,
    pub(crate) content: NewContent,
    /// The version that the operator has seen. Another one is a conflict.
    pub(crate) expected: Option<i64>,
    pub(crate) author: String,
    pub(crate) note: Option<String>,
    /// Whether nothing is stored.
    pub(crate) dry_run: bool,
}

/// What a change does.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    /// The active version after the change.
    pub(crate) version: i64,
    pub(crate) revision: i64,
    /// Whether the content differs from the one before.
    pub(crate) is_changed: bool,
    pub(crate) diff: String,
    /// What is valid and cannot work, of a rule set.
    pub(crate) warnings: Vec<String>,
}

/// A definition as operators see it.
#[derive(Clone, Debug)]
pub(crate) struct DefinitionView {
    pub(crate) key: DefinitionKey,
    /// 0 if the configuration file's counts and nothing was ever stored.
    pub(crate) version: i64,
    /// None if it is removed.
    pub(crate) text: Option<String>,
    /// `file`, `set` or `removed`.
    pub(crate) origin: &'static str,
    /// None for version 0.
    pub(crate) stored: Option<Definition>,
}

impl Definitions {
    /// Returns all definitions that count, and those that were removed.
    pub(crate) async fn list(&self) -> Result<(i64, Vec<DefinitionView>), DefinitionError> {
        let revision = store::newest_revision(&self.0.db).await?;
        let stored = store::as_of(&self.0.db, revision).await?;
        let is_stored = |key: &DefinitionKey| stored.iter().any(|definition| definition.key == *key);
        let configured: Vec<DefinitionKey> = self.0.configured.keys().filter(|key| !is_stored(key)).collect();
        let mut views: Vec<DefinitionView> =
            configured.into_iter().filter_map(|key| self.configured_view(key)).collect();
        views.extend(stored.into_iter().map(|definition| self.view(definition)));
        views.sort_by(|a, b| a.key.cmp(&b.key));
        Ok((revision, views))
    }

    /// Returns a version of a definition, or the one that counts.
    pub(crate) async fn show(
        &self,
        key: &DefinitionKey,
        version: Option<i64>,
    ) -> Result<DefinitionView, DefinitionError> {
        let found = match version {
            Some(0) => self.configured_view(key.clone()),
            Some(version) => {
                let found = store::history(&self.0.db, key, version.saturating_add(1), 1).await?;
                let found = found.into_iter().find(|definition| definition.version == version);
                found.map(|definition| self.view(definition))
            }
            None => {
                let newest = store::history(&self.0.db, key, i64::MAX, 1).await?.pop();
                match newest {
                    Some(definition) => Some(self.view(definition)),
                    None => self.configured_view(key.clone()),
                }
            }
        };
        found.ok_or_else(|| unknown(key, version))
    }

    /// Returns the versions of a definition before `before`, the newest first, and whether the configuration file has one.
    pub(crate) async fn history(
        &self,
        key: &DefinitionKey,
        before: Option<i64>,
        limit: u32,
    ) -> Result<(Vec<Definition>, bool), DefinitionError> {
        let versions = store::history(&self.0.db, key, before.unwrap_or(i64::MAX), limit).await?;
        let is_configured = self.0.configured.text(key).is_some();
        if versions.is_empty() && before.is_none() && !is_configured {
            return Err(unknown(key, None));
        }
        Ok((versions, is_configured))
    }

    /// Checks the set of definitions with a change as a whole, stores the change, and follows it. A change that changes
    /// nothing stores nothing.
    pub(crate) async fn change(&self, change: &Change) -> Result<Changed, DefinitionError> {
        if let NewContent::Text(text) = &change.content
            && text.len() > MAX_TEXT
        {
            return Err(DefinitionError::Invalid(format!("the text has more than {} KiB", MAX_TEXT / 1024)));
        }
        for _ in 0..ATTEMPTS {
            match self.try_change(change).await {
                // Another change got the revision: this one must be checked together with it.
                Err(DefinitionError::Database(db::Error::Duplicate(_) | db::Error::Busy(_))) => {}
                done => return done,
            }
        }
        Err(DefinitionError::Contended)
    }

    async fn try_change(&self, change: &Change) -> Result<Changed, DefinitionError> {
        let (inner, key) = (&self.0, &change.key);
        let revision = store::newest_revision(&inner.db).await?;
        let stored = store::as_of(&inner.db, revision).await?;
        let before = stored.iter().find(|definition| definition.key == *key);
        let current = before.map_or(0, |definition| definition.version);
        if let Some(expected) = change.expected.filter(|expected| *expected != current) {
            return Err(DefinitionError::Conflict { key: key.clone(), current, expected });
        }
        let content = self.content(change).await?;
        let old = self.text_of(key, before.map_or(&Content::File, |definition| &definition.content));
        let new = self.text_of(key, &content);
        if old.is_none() && content == Content::Removed {
            return Err(unknown(key, None));
        }
        let definition = Definition {
            key: key.clone(),
            version: current + 1,
            revision: revision + 1,
            content,
            author: truncate(&change.author, 255),
            note: change.note.as_deref().map(|note| truncate(note, 500)),
            // The database sets it.
            created_at: Timestamp::from_millis(0),
        };
        let mut after: Vec<Definition> =
            stored.iter().filter(|definition| definition.key != *key).cloned().collect();
        after.push(definition.clone());
        let (resolved, mistakes) = inner.configured.resolve(&after);
        // Mistakes of before, such as an assigner that this process lacks, must not keep an operator from correcting others.
        let (_, known) = inner.configured.resolve(&stored);
        let is_new = |mistake: &&DefinitionMistake| mistake.key == *key || !known.contains(mistake);
        let new_mistakes: Vec<String> = mistakes.iter().filter(is_new).map(ToString::to_string).collect();
        if !new_mistakes.is_empty() {
            return Err(DefinitionError::Mistakes(new_mistakes));
        }
        let is_rule_set = key.kind == DefinitionKind::RuleSet;
        let rule_set = resolved.rule_set(&key.name).filter(|_| is_rule_set && new.is_some());
        let warnings = rule_set.map(|rules| rules.lint().iter().map(ToString::to_string).collect());
        let (old_text, new_text) = (old.as_deref().unwrap_or_default(), new.as_deref().unwrap_or_default());
        let is_changed = old != new
            || before.map_or(&Content::File, |definition| &definition.content).word()
                != definition.content.word();
        let done = Changed {
            version: if is_changed { definition.version } else { current },
            revision: if is_changed { definition.revision } else { revision },
            is_changed,
            diff: diff(old_text, new_text),
            warnings: warnings.unwrap_or_default(),
        };
        if change.dry_run || !is_changed {
            return Ok(done);
        }
        let mut tx = inner.db.begin().await?;
        store::insert(&mut tx, &definition);
        inner.db.bounded(tx.commit()).await?;
        runtime::fault::point("matchmaking.definition.stored");
        // Other processes, and this one if it fails here, find the revision by polling.
        let _ = self.tick().await;
        let _ = inner.live.publish::<DefinitionsChanged>(AllDefinitions, ()).await;
        Ok(done)
    }

    async fn content(&self, change: &Change) -> Result<Content, DefinitionError> {
        Ok(match &change.content {
            NewContent::Text(text) => Content::Text(text.clone()),
            NewContent::Removed => Content::Removed,
            NewContent::Version(0) => match self.0.configured.text(&change.key) {
                Some(_) => Content::File,
                None => return Err(unknown(&change.key, Some(0))),
            },
            NewContent::Version(version) => {
                let found = self.show(&change.key, Some(*version)).await?;
                found.stored.map_or(Content::File, |definition| definition.content)
            }
        })
    }

    fn text_of(&self, key: &DefinitionKey, content: &Content) -> Option<String> {
        match content {
            Content::Text(text) => Some(text.clone()),
            Content::File => self.0.configured.text(key),
            Content::Removed => None,
        }
    }

    fn view(&self, definition: Definition) -> DefinitionView {
        DefinitionView {
            text: self.text_of(&definition.key, &definition.content),
            key: definition.key.clone(),
            version: definition.version,
            origin: definition.content.word(),
            stored: Some(definition),
        }
    }

    fn configured_view(&self, key: DefinitionKey) -> Option<DefinitionView> {
        let text = self.0.configured.text(&key)?;
        Some(DefinitionView { key, version: 0, text: Some(text), origin: Content::File.word(), stored: None })
    }
}

fn unknown(key: &DefinitionKey, version: Option<i64>) -> DefinitionError {
    DefinitionError::NotFound(match version {
        None => format!("there is no {key}; `playhouse rules list` shows all"),
        Some(0) => format!("the configuration file has no {key}"),
        Some(version) => {
            format!(
                "{key} has no version {version}; `playhouse rules history {} --kind {}` shows all",
                key.name,
                key.kind.word()
            )
        }
    })
}

/// Truncates a text to a number of characters. Replaces control characters by spaces.
fn truncate(text: &str, characters: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(characters).collect()
}
