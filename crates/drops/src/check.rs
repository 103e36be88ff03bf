//! Validation of request fields.

use crate::error::Error;
use crate::model::check_text;

/// Rejects a text that is empty, longer than `max` characters, surrounded by spaces, or contains control characters.
pub(crate) fn text(field: &'static str, text: &str, max: usize) -> Result<(), Error> {
    check_text(text, max).map_err(|what| Error::Invalid { field, what })
}

/// Rejects a number of units that no stock can have.
pub(crate) fn units(field: &'static str, units: i64) -> Result<(), Error> {
    use crate::stock::MAX_UNITS;
    if (0..=MAX_UNITS).contains(&units) {
        return Ok(());
    }
    Err(Error::Invalid { field, what: format!("must be 0 to {MAX_UNITS}, not {units}") })
}
