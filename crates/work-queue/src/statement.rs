//! The texts of a queue's statements, and the items that they are about.

use std::sync::Arc;

use base::id::Uuid;
use db::{Dialect, ListStatement};

/// How many items are named by their ids in one statement.
pub(crate) const IDS_AT_ONCE: usize = 500;

/// Which items a statement is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names<'a> {
    Numbers(&'a [i64]),
    /// At most [`IDS_AT_ONCE`].
    Ids(&'a [Uuid]),
}

impl Names<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Ids(ids) => ids.len(),
        }
    }
}

/// Binds [`Names`] as [`db::bind_list!`] binds a list.
macro_rules! bind_names {
    ($query:expr, $names:expr, $padding:expr) => {
        match $names {
            $crate::statement::Names::Numbers(numbers) => {
                db::bind_list!($query, numbers, $padding)
            }
            $crate::statement::Names::Ids(ids) => {
                let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
                db::bind_list!($query, ids, $padding)
            }
        }
    };
}
pub(crate) use bind_names;

/// Makes the texts of a queue: in its dialect, and with its table.
pub(crate) struct Text {
    table: &'static str,
    dialect: Dialect,
}

impl Text {
    pub(crate) const fn new(table: &'static str, dialect: Dialect) -> Self {
        Self { table, dialect }
    }

    pub(crate) fn fill(&self, text: &str) -> String {
        let Self { table, dialect } = self;
        // SQLite has one writer: whoever is in a transaction is alone.
        let skip_locked = dialect.pick("", "FOR UPDATE SKIP LOCKED");
        // Left to themselves, the servers now and then prefer to walk past everything that is finished.
        let by_state = dialect.pick("", "FORCE INDEX (by_state)");
        let by_key = dialect.pick("", "FORCE INDEX (by_key)");
        let for_update = dialect.pick("", "FOR UPDATE");
        let or_ignore = dialect.pick("OR IGNORE", "IGNORE");
        text.replace("{skip_locked}", skip_locked)
            .replace("{for_update}", for_update)
            .replace("{or_ignore}", or_ignore)
            .replace("{by_state}", by_state)
            .replace("{by_key}", by_key)
            .replace("{now}", dialect.now())
            .replace("{table}", table)
    }

    pub(crate) fn list(&self, text: &str, max: usize) -> ListStatement {
        ListStatement::new(&self.fill(text), max)
    }

    pub(crate) fn fixed(&self, text: &str) -> Arc<str> {
        self.fill(text).into()
    }
}
