//! Mistakes in a document, and where they are.

use std::fmt;

/// A position in a text. Both numbers start at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub position: Position,
    /// What is wrong and what was expected.
    pub message: String,
    pub help: Option<String>,
}

impl Mistake {
    pub(crate) fn new(position: Position, message: String) -> Self {
        Self { position, message, help: None }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "; {help}"))
    }
}

/// All mistakes of a document, in the order of their lines, a line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(Vec<Mistake>);

impl Mistakes {
    pub(crate) fn new(mut mistakes: Vec<Mistake>) -> Self {
        mistakes.sort_by_key(|mistake| mistake.position);
        mistakes.dedup();
        Self(mistakes)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mistake> {
        self.0.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// Returns the help for an unknown name: the most similar known one, or all of them if they are few.
pub(crate) fn suggest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<String> {
    let scored = known.clone().into_iter().map(|name| (strsim::damerau_levenshtein(unknown, name), name));
    let (distance, nearest) = scored.min()?;
    if distance <= 2.max(unknown.chars().count() / 3) {
        return Some(format!("did you mean `{nearest}`?"));
    }
    let all: Vec<&str> = known.into_iter().collect();
    (all.len() <= 16).then(|| format!("known: {}", all.join(", ")))
}
