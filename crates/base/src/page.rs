//! Pages of a list.

/// Returns how many rows to read for a page: one more than the page shows, so that the reader knows whether there is a next page.
pub const fn rows_to_read(limit: u32) -> u32 {
    limit.saturating_add(1)
}

/// Cuts the rows that were [read](rows_to_read) for a page down to its `limit`. Returns the key of the last row if there is a next page.
pub fn next_page<T, K>(rows: &mut Vec<T>, limit: u32, key: impl FnOnce(&T) -> K) -> Option<K> {
    let limit = limit as usize;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| has_more).map(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_last_page_has_no_next_page() {
        for (stored, page, next) in
            [(0, 0, None), (1, 1, None), (2, 2, None), (3, 2, Some(1)), (9, 2, Some(1))]
        {
            let mut rows: Vec<usize> = (0..stored).take(rows_to_read(2) as usize).collect();
            assert_eq!(next_page(&mut rows, 2, |last| *last), next, "{stored} rows");
            assert_eq!(rows.len(), page, "{stored} rows");
        }
    }
}
