//! The statements that lock: look-ups by primary key, joined by `UNION ALL`, run by the server in the order of the text.
//!
//! A list of rows is cut into pieces of shared and then exclusive ones, each piece is one statement, and pieces are padded to a
//! few sizes with look-ups of NULL, which find and lock nothing. So there are few texts, and each is prepared once. `IN` or
//! `OR` would not do: on small tables the servers scan for them, and wait for rows that were not asked for.

use std::sync::OnceLock;

use sqlx::mysql::MySqlConnection;

use crate::plan::{Mode, Row};

// Not `FOR SHARE`, which MariaDB does not know.
const SHARED: &str = "(SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? LOCK IN SHARE MODE)";
const EXCLUSIVE: &str = "(SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? FOR UPDATE)";
const JOIN: &str = " UNION ALL ";

/// How many shared rows a text may have, and how many exclusive ones. The servers' effort grows faster than the number of
/// branches, so there is no use in more.
const SHARED_SIZES: [usize; 9] = [0, 1, 2, 3, 4, 6, 8, 16, 32];
const EXCLUSIVE_SIZES: [usize; 18] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64];

/// Rows that one statement locks: shared ones, then exclusive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    shared: &'a [(Row, Mode)],
    exclusive: &'a [(Row, Mode)],
}

/// Cuts a list into pieces, without changing its order.
pub(super) fn pieces(mut rows: &[(Row, Mode)]) -> impl Iterator<Item = Piece<'_>> {
    std::iter::from_fn(move || {
        let (shared, rest) = rows.split_at(run(rows, Mode::Shared, &SHARED_SIZES));
        let (exclusive, rest) = rest.split_at(run(rest, Mode::Exclusive, &EXCLUSIVE_SIZES));
        rows = rest;
        (!shared.is_empty() || !exclusive.is_empty()).then_some(Piece { shared, exclusive })
    })
}

/// How many rows at the front are of this mode and fit into one statement.
fn run(rows: &[(Row, Mode)], mode: Mode, sizes: &[usize]) -> usize {
    let most = sizes.last().copied().unwrap_or(0);
    rows.iter().take(most).take_while(|(_, of)| *of == mode).count()
}

impl Piece<'_> {
    /// Locks the rows. Returns the first that does not exist, with the others locked.
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
        // It has been made meanwhile, and is not locked all the same.
        Ok(self.exclusive.last().or(self.shared.last()).map(|(row, _)| *row))
    }
}

/// The smallest size that is enough.
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

    fn cut(modes: &str) -> Vec<(usize, usize)> {
        let rows = rows(modes);
        let pieces: Vec<Piece<'_>> = pieces(&rows).collect();
        let again: Vec<(Row, Mode)> =
            pieces.iter().flat_map(|piece| piece.shared.iter().chain(piece.exclusive)).copied().collect();
        assert_eq!(again, rows, "nothing is left out and nothing moves");
        pieces.iter().map(|piece| (piece.shared.len(), piece.exclusive.len())).collect()
    }

    #[test]
    fn what_is_usual_is_one_statement() {
        assert_eq!(cut("X"), [(0, 1)]);
        assert_eq!(cut("SX"), [(1, 1)]);
        assert_eq!(cut("SSX"), [(2, 1)]);
        assert_eq!(cut("SSSSSXXXXXXXXX"), [(5, 9)]);
    }

    #[test]
    fn any_list_is_cut_in_its_order() {
        assert_eq!(cut("XSXXS"), [(0, 1), (1, 2), (1, 0)]);
        assert_eq!(cut(&"S".repeat(70)), [(32, 0), (32, 0), (6, 0)]);
        assert_eq!(cut(&format!("SS{}", "X".repeat(130))), [(2, 64), (0, 64), (0, 2)]);
        assert_eq!(cut(""), []);
    }

    #[test]
    fn there_are_few_texts() {
        assert_eq!(EXCLUSIVE_SIZES[size(&EXCLUSIVE_SIZES, 9)], 10);
        assert_eq!(EXCLUSIVE_SIZES[size(&EXCLUSIVE_SIZES, 64)], 64);
        assert_eq!(SHARED_SIZES[size(&SHARED_SIZES, 5)], 6);
        assert!(SHARED_SIZES.len() * EXCLUSIVE_SIZES.len() < super::super::STATEMENT_CACHE);
        assert_eq!(text(2, 1).matches("UNION ALL").count(), 2);
    }
}
