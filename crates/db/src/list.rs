//! Lists of values in statements, `… IN ({list})`.
//!
//! A list is padded to a power of two with its last value, so that there are few texts and each is prepared once.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

/// Makes the text for a list of this length. Returns it with the padding that [`bind_list!`](crate::bind_list) needs. `text` has
/// `{list}` in it, and is never made of what somebody sent.
pub fn list_text(text: &str, length: usize) -> (AssertSqlSafe<String>, usize) {
    let padded = padded(length);
    (AssertSqlSafe(with_places(text, padded)), padded - length)
}

/// A text with `{list}` in it, made once for lists of all lengths up to a limit.
#[derive(Clone, Debug)]
pub struct ListStatement {
    /// By the number of doublings.
    texts: Vec<Arc<str>>,
}

impl ListStatement {
    pub fn new(text: &str, max: usize) -> Self {
        let sizes = 0..=padded(max).trailing_zeros();
        Self { texts: sizes.map(|size| with_places(text, 1 << size).into()).collect() }
    }

    /// Returns the text for a list of this length, which is within the limit, and the padding.
    pub fn of(&self, length: usize) -> (AssertSqlSafe<Arc<str>>, usize) {
        let at = (padded(length).trailing_zeros() as usize).min(self.texts.len() - 1);
        (AssertSqlSafe(self.texts[at].clone()), (1_usize << at).saturating_sub(length))
    }
}

fn padded(length: usize) -> usize {
    length.max(1).next_power_of_two()
}

fn with_places(text: &str, count: usize) -> String {
    text.replace("{list}", &vec!["?"; count].join(", "))
}

/// Binds a list of numbers or bytes and its padding to a query, behind the values that are bound already.
///
/// An empty list is padded with a default value, which must be no row's: the number 0, or no bytes.
///
/// ```
/// # async fn example(tx: &mut db::Tx, ids: &[i64]) -> Result<u64, db::Error> {
/// let (text, padding) = db::list_text("DELETE FROM example WHERE id IN ({list})", ids.len());
/// let removed = db::on!(tx, connection => {
///     db::bind_list!(sqlx::query(text), ids, padding).execute(connection).await?.rows_affected()
/// });
/// # Ok(removed)
/// # }
/// ```
#[macro_export]
macro_rules! bind_list {
    ($query:expr, $values:expr, $padding:expr) => {{
        let mut query = $query;
        for value in $values.iter() {
            query = query.bind(*value);
        }
        let last = $values.last().copied().unwrap_or_default();
        for _ in 0..$padding {
            query = query.bind(last);
        }
        query
    }};
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lists_of_all_lengths_need_few_texts() {
        const TEXT: &str = "DELETE FROM t WHERE id IN ({list})";
        let statement = ListStatement::new(TEXT, 500);
        let texts: BTreeSet<String> = (0..=500)
            .map(|length| {
                let (AssertSqlSafe(text), padding) = statement.of(length);
                assert_eq!(text.matches('?').count(), length + padding);
                let (AssertSqlSafe(once), same_padding) = list_text(TEXT, length);
                assert_eq!((once.as_str(), same_padding), (&*text, padding));
                once
            })
            .collect();
        assert_eq!(texts.len(), 10);
        assert!(texts.contains("DELETE FROM t WHERE id IN (?, ?)"));
    }
}
