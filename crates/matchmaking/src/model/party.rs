//! Parties: players who queue together.

use super::id::{generated_id, is_generated};

generated_id! {
    /// The id of a party.
    PartyId
}

impl PartyId {
    /// Parses an id from outside. Returns `None` if no party can have it.
    pub fn parse(text: &str) -> Option<Self> {
        is_generated(text).then(|| Self(text.into()))
    }
}
