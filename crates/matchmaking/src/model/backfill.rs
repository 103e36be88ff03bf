//! Backfills: matches under way that have room for more tickets.

use std::fmt;
use std::sync::Arc;

use super::{Moment, generate_id};

/// The id of a backfill.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackfillId(Arc<str>);

impl BackfillId {
    /// Generates an id for a backfill created at this moment, in the form of ticket ids.
    pub fn generate(created: Moment) -> Self {
        Self(generate_id(created).into())
    }

    /// Parses an id from outside. Returns `None` if no backfill can have it: ids are only created here.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'v').contains(&byte);
        (text.len() == 20 && text.bytes().all(is_digit)).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackfillId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BackfillId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackfillId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generated_ids_can_be_parsed() {
        let id = BackfillId::generate(Moment::from_nanos(1_800_000_000_000_000_000));
        assert_eq!(BackfillId::parse(id.as_str()), Some(id));
        for bad in [
            "",
            "dbt8pcfejq8o287bsa0",
            "dbt8pcfejq8o287bsa0g0",
            "DBT8PCFEJQ8O287BSA0G",
            "dbt8pcfejq8o287bsa0z",
        ] {
            assert_eq!(BackfillId::parse(bad), None, "{bad:?}");
        }
    }
}
