//! Ready checks: matches whose players are asked first.

use std::fmt;
use std::sync::Arc;

use super::{Moment, generate_id};

/// The id of a ready check.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadyCheckId(Arc<str>);

impl ReadyCheckId {
    /// Generates an id for a check opened at this moment, in the form of ticket ids.
    pub fn generate(opened: Moment) -> Self {
        Self(generate_id(opened).into())
    }

    /// Returns the id that a store has recorded.
    pub(crate) fn stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ReadyCheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ReadyCheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadyCheckId({})", self.0)
    }
}
