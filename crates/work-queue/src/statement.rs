//! Builds the SQL statements of a queue, and binds the items that they refer to.

use std::sync::Arc;

use base::id::Uuid;
use db::{Dialect, ListStatement};

/// How many ids one statement takes at most.
pub(crate) const MAX_IDS: usize = 500;

/// The items that a statement refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ItemRefs<'a> {
    Numbers(&'a [i64]),
    /// At most [`MAX_IDS`].
    Ids(&'a [Uuid]),
}

impl ItemRefs<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Ids(ids) => ids.len(),
        }
    }
}

/// Binds [`ItemRefs`] as [`db::bind_list!`] binds a list.
macro_rules! bind_refs {
    ($query:expr, $refs:expr, $padding:expr) => {
        match $refs {
            $crate::statement::ItemRefs::Numbers(numbers) => {
                db::bind_list!($query, numbers, $padding)
            }
            $crate::statement::ItemRefs::Ids(ids) => {
                let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
                db::bind_list!($query, ids, $padding)
            }
        }
    };
}
pub(crate) use bind_refs;

/// Fills the templates of a queue's statements with its table and SQL dialect.
pub(crate) struct StatementBuilder {
    table: &'static str,
    dialect: Dialect,
}

impl StatementBuilder {
    pub(crate) const fn new(table: &'static str, dialect: Dialect) -> Self {
        Self { table, dialect }
    }

    pub(crate) fn fill(&self, text: &str) -> String {
        let Self { table, dialect } = self;
        // SQLite has one writer, so a transaction needs no row locks.
        let skip_locked = dialect.pick("", "FOR UPDATE SKIP LOCKED");
        // Without the hint the servers sometimes scan all finished items.
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
