//! Lists of values in statements, `… IN ({list})`.
//!
//! A list is padded to a power of two by repeating its last value. So there are few distinct texts, each prepared once.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

/// Builds the text for a list of this length. Returns it with the padding that [`bind_list!`](crate::bind_list) needs. `text` contains
/// `{list}` and must never contain user input.
pub fn list_text(text: &str, length: usize) -> (AssertSqlSafe<String>, usize) {
    let padded = padded(length);
    (AssertSqlSafe(with_placeholders(text, padded)), padded - length)
}

/// A statement with `{list}` in its text, built once for lists of all lengths up to a limit.
#[derive(Clone, Debug)]
pub struct ListStatement {
    /// Indexed by the base-2 logarithm of the padded length.
    texts: Vec<Arc<str>>,
}

impl ListStatement {
    pub fn new(text: &str, max: usize) -> Self {
        let sizes = 0..=padded(max).trailing_zeros();
        Self { texts: sizes.map(|size| with_placeholders(text, 1 << size).into()).collect() }
    }

    /// Returns the text for a list of this length, which must be within the limit, and the padding.
    pub fn for_length(&self, length: usize) -> (AssertSqlSafe<Arc<str>>, usize) {
        let at = (padded(length).trailing_zeros() as usize).min(self.texts.len() - 1);
        (AssertSqlSafe(self.texts[at].clone()), (1_usize << at).saturating_sub(length))
    }
}

fn padded(length: usize) -> usize {
    length.max(1).next_power_of_two()
}

fn with_placeholders(text: &str, count: usize) -> String {
    text.replace("{list}", &vec!["?"; count].join(", "))
}

/// Binds a list of numbers or bytes and its padding to a query, after the values that are bound already.
///
/// An empty list is padded with the default value, the number 0 or empty bytes, which no row may have.
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
    fn few_texts_cover_lists_of_all_lengths() {
        const TEXT: &str = "DELETE FROM t WHERE id IN ({list})";
        let statement = ListStatement::new(TEXT, 500);
        let texts: BTreeSet<String> = (0..=500)
            .map(|length| {
                let (AssertSqlSafe(text), padding) = statement.for_length(length);
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
