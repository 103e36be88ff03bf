//! The statements that lock rows: primary-key look-ups joined by `UNION ALL`, which the server executes in textual order.
//!
//! A list of rows is split into statements of shared rows followed by exclusive ones. Statements are padded to a few sizes with look-ups of
//! NULL, which find and lock nothing. So there are few distinct texts, each prepared once. `IN` or `OR` would not work: on small tables the
//! servers scan, and wait for rows that were not requested.

use std::sync::OnceLock;

use sqlx::mysql::MySqlConnection;

use crate::plan::{Mode, Row};

// Not `FOR SHARE`, which MariaDB does not support.
const SHARED: &str = "(SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? LOCK IN SHARE MODE)";
const EXCLUSIVE: &str = "(SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? FOR UPDATE)";
const JOIN: &str = " UNION ALL ";

/// The numbers of shared and of exclusive rows that a text may have. The cost on the server grows faster than the number of branches,
/// so larger statements gain nothing.
const SHARED_SIZES: [usize; 9] = [0, 1, 2, 3, 4, 6, 8, 16, 32];
const EXCLUSIVE_SIZES: [usize; 18] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64];

/// The rows that one statement locks: shared ones, then exclusive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockStatement<'a> {
    shared: &'a [(Row, Mode)],
    exclusive: &'a [(Row, Mode)],
}

/// Splits a list of rows into statements, preserving its order.
pub(super) fn lock_statements(mut rows: &[(Row, Mode)]) -> impl Iterator<Item = LockStatement<'_>> {
    std::iter::from_fn(move || {
        let (shared, rest) = rows.split_at(run(rows, Mode::Shared, &SHARED_SIZES));
        let (exclusive, rest) = rest.split_at(run(rest, Mode::Exclusive, &EXCLUSIVE_SIZES));
        rows = rest;
        (!shared.is_empty() || !exclusive.is_empty()).then_some(LockStatement { shared, exclusive })
    })
}

/// Returns how many rows at the front have this mode and fit into one statement.
fn run(rows: &[(Row, Mode)], mode: Mode, sizes: &[usize]) -> usize {
    let most = sizes.last().copied().unwrap_or(0);
    rows.iter().take(most).take_while(|(_, of)| *of == mode).count()
}

impl LockStatement<'_> {
    /// Locks the rows. If some do not exist, the others are locked all the same, and the first missing one is returned.
    pub(super) async fn lock(&self, connection: &mut MySqlConnection) -> Result<Option<Row>, sqlx::Error> {
        let (shared, exclusive) =
            (size(&SHARED_SIZES, self.shared.len()), size(&EXCLUSIVE_SIZES, self.exclusive.len()));
        let mut query = sqlx::query(text(shared, exclusive));
        for (rows, size) in
            [(self.shared, SHARED_SIZES[shared]), (self.exclusive, EXCLUSIVE_SIZES[exclusive])]
        {
            for (row, _) in rows {
                query = query.bind(row.level as u8).bind(row.bucket);
            }
            for _ in rows.len()..size {
                query = query.bind(None::<u8>).bind(None::<u32>);
            }
        }
        let found = query.fetch_all(&mut *connection).await?;
        if found.len() == self.shared.len() + self.exclusive.len() {
            return Ok(None);
        }
        self.first_missing(connection).await
    }

    async fn first_missing(&self, connection: &mut MySqlConnection) -> Result<Option<Row>, sqlx::Error> {
        const FIND: &str = "SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=?";
        for (row, _) in self.shared.iter().chain(self.exclusive) {
            let find = sqlx::query(FIND).bind(row.level as u8).bind(row.bucket);
            if find.fetch_all(&mut *connection).await?.is_empty() {
                return Ok(Some(*row));
            }
        }
        // The row was created in the meantime but is not locked.
        Ok(self.exclusive.last().or(self.shared.last()).map(|(row, _)| *row))
    }
}

/// Returns the index of the smallest sufficient size.
fn size(sizes: &[usize], count: usize) -> usize {
    sizes.partition_point(|size| *size < count)
}

fn text(shared: usize, exclusive: usize) -> &'static str {
    static TEXTS: [[OnceLock<String>; EXCLUSIVE_SIZES.len()]; SHARED_SIZES.len()] =
        [const { [const { OnceLock::new() }; EXCLUSIVE_SIZES.len()] }; SHARED_SIZES.len()];
    TEXTS[shared][exclusive].get_or_init(|| {
        let shared = std::iter::repeat_n(SHARED, SHARED_SIZES[shared]);
        let exclusive = std::iter::repeat_n(EXCLUSIVE, EXCLUSIVE_SIZES[exclusive]);
        shared.chain(exclusive).collect::<Vec<_>>().join(JOIN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    fn rows(modes: &str) -> Vec<(Row, Mode)> {
        let mode = |letter| if letter == 'S' { Mode::Shared } else { Mode::Exclusive };
        let row = |bucket| Row { level: Level::User, bucket };
        (0..).zip(modes.chars()).map(|(bucket, letter)| (row(bucket), mode(letter))).collect()
    }

    fn split(modes: &str) -> Vec<(usize, usize)> {
        let rows = rows(modes);
        let lock_statements: Vec<LockStatement<'_>> = lock_statements(&rows).collect();
        let again: Vec<(Row, Mode)> = lock_statements
            .iter()
            .flat_map(|statement| statement.shared.iter().chain(statement.exclusive))
            .copied()
            .collect();
        assert_eq!(again, rows, "every row is locked, in the same order");
        lock_statements.iter().map(|statement| (statement.shared.len(), statement.exclusive.len())).collect()
    }

    #[test]
    fn common_cases_are_one_statement() {
        assert_eq!(split("X"), [(0, 1)]);
        assert_eq!(split("SX"), [(1, 1)]);
        assert_eq!(split("SSX"), [(2, 1)]);
        assert_eq!(split("SSSSSXXXXXXXXX"), [(5, 9)]);
    }

    #[test]
    fn lists_are_split_in_order() {
        assert_eq!(split("XSXXS"), [(0, 1), (1, 2), (1, 0)]);
        assert_eq!(split(&"S".repeat(70)), [(32, 0), (32, 0), (6, 0)]);
        assert_eq!(split(&format!("SS{}", "X".repeat(130))), [(2, 64), (0, 64), (0, 2)]);
        assert_eq!(split(""), []);
    }

    #[test]
    fn all_texts_fit_into_the_statement_cache() {
        assert_eq!(EXCLUSIVE_SIZES[size(&EXCLUSIVE_SIZES, 9)], 10);
        assert_eq!(EXCLUSIVE_SIZES[size(&EXCLUSIVE_SIZES, 64)], 64);
        assert_eq!(SHARED_SIZES[size(&SHARED_SIZES, 5)], 6);
        assert!(SHARED_SIZES.len() * EXCLUSIVE_SIZES.len() < super::super::STATEMENT_CACHE);
        assert_eq!(text(2, 1).matches("UNION ALL").count(), 2);
    }
}
