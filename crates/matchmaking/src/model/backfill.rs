//! Backfills: matches under way that have room for more tickets.

use super::id::{generated_id, is_generated};

generated_id! {
    /// The id of a backfill.
    BackfillId
}

impl BackfillId {
    /// Parses an id from outside. Returns `None` if no backfill can have it.
    pub fn parse(text: &str) -> Option<Self> {
        is_generated(text).then(|| Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Moment;

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
