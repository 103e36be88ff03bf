//! Statements over lists of items.

use std::sync::Arc;

use base::id::Uuid;
use db::Dialect;
use sqlx::AssertSqlSafe;

/// A statement with a list of numbers or names at its end, `… id IN (?, ?, …)`.
///
/// Lists are filled up to a power of two with their last one, so that there are few texts and each is prepared once.
#[derive(Clone, Debug)]
pub(crate) struct ListStatement {
    /// By the number of doublings.
    texts: Vec<Arc<str>>,
}

impl ListStatement {
    /// `text` has `{list}` in it.
    pub(crate) fn new(text: &str, max: usize) -> Self {
        let sizes = 0..=max.max(1).next_power_of_two().trailing_zeros();
        let with = |size: u32| text.replace("{list}", &places(1 << size)).into();
        Self { texts: sizes.map(with).collect() }
    }

    /// The text for a list of this length, and how often its last one is repeated.
    pub(crate) fn of(&self, length: usize) -> (AssertSqlSafe<Arc<str>>, usize) {
        let padded = length.max(1).next_power_of_two();
        let at = (padded.trailing_zeros() as usize).min(self.texts.len() - 1);
        (AssertSqlSafe(self.texts[at].clone()), (1_usize << at).saturating_sub(length))
    }
}

/// How many items are named by their ids in one statement.
pub(crate) const IDS_AT_ONCE: usize = 500;

/// Binds a list of numbers, or of names' bytes, behind what is bound already.
macro_rules! bind_list {
    ($query:expr, $numbers:expr, $padding:expr) => {{
        let mut query = $query;
        for number in $numbers.iter() {
            query = query.bind(*number);
        }
        let last = $numbers.last().copied().unwrap_or_default();
        for _ in 0..$padding {
            query = query.bind(last);
        }
        query
    }};
}
pub(crate) use bind_list;

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

/// As [`bind_list`], for [`Names`].
macro_rules! bind_names {
    ($query:expr, $names:expr, $padding:expr) => {
        match $names {
            $crate::statement::Names::Numbers(numbers) => {
                $crate::statement::bind_list!($query, numbers, $padding)
            }
            $crate::statement::Names::Ids(ids) => {
                let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
                $crate::statement::bind_list!($query, ids, $padding)
            }
        }
    };
}
pub(crate) use bind_names;

fn places(count: usize) -> String {
    let mut text = "?, ".repeat(count);
    text.truncate(text.len() - 2);
    text
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_all_lengths_need_few_texts() {
        let statement = ListStatement::new("DELETE FROM t WHERE id IN ({list})", 500);
        let texts: std::collections::BTreeSet<String> = (1..=500)
            .map(|length| {
                let (AssertSqlSafe(text), padding) = statement.of(length);
                assert_eq!(text.matches('?').count(), length + padding);
                text.to_string()
            })
            .collect();
        assert_eq!(texts.len(), 10);
        assert!(texts.contains("DELETE FROM t WHERE id IN (?, ?)"));
    }
}
