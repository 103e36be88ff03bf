//! Ready checks: matches whose players are asked first.

use super::id::generated_id;

generated_id! {
    /// The id of a ready check.
    ReadyCheckId
}

impl ReadyCheckId {
    /// Returns the id that a store has recorded.
    pub(crate) fn stored(text: &str) -> Self {
        Self(text.into())
    }
}
