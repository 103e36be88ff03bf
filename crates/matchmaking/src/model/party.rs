//! Parties: players who queue together.

use std::fmt;
use std::sync::Arc;

use super::{Moment, generate_id};

/// The id of a party.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartyId(Arc<str>);

impl PartyId {
    /// Generates an id for a party created at this moment, in the form of ticket ids.
    pub fn generate(created: Moment) -> Self {
        Self(generate_id(created).into())
    }

    /// Parses an id from outside. Returns `None` if no party can have it: ids are only created here.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'v').contains(&byte);
        (text.len() == 20 && text.bytes().all(is_digit)).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PartyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PartyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartyId({})", self.0)
    }
}
