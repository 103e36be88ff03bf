//! Stored values that cannot be read.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Db, Error};

/// Counts the unreadable values that this process has met, by table. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadableRows(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl UnreadableRows {
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Db {
    /// Logs and counts a stored value that cannot be read, and returns the error for it.
    pub fn corrupt(&self, table: &'static str, row: impl Display, cause: impl Display) -> Error {
        let (row, cause) = (row.to_string(), cause.to_string());
        tracing::error!(table, row, cause, "a stored value cannot be read");
        *self.unreadable.0.lock().unwrap_or_else(PoisonError::into_inner).entry(table).or_default() += 1;
        Error::Corrupt { table, row, cause }
    }
}
