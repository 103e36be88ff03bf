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

/// Reads a list to its end, in pages of `limit` rows. `read` gets the key after which its page begins, and none for the first page.
pub async fn read_all<T, K, E, Page>(
    limit: u32,
    key: impl Fn(&T) -> K,
    mut read: impl FnMut(Option<K>) -> Page,
) -> Result<Vec<T>, E>
where
    Page: Future<Output = Result<Vec<T>, E>>,
{
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = read(after).await?;
        after = page.last().filter(|_| page.len() >= limit as usize).map(&key);
        rows.extend(page);
        if after.is_none() {
            return Ok(rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn list_is_read_to_its_end() {
        for stored in 0..7_usize {
            let page = |after: Option<usize>| {
                let from = after.map_or(0, |after| after + 1);
                ready(Ok::<Vec<usize>, ()>((from..stored).take(2).collect()))
            };
            let mut reading = pin!(read_all(2, |last| *last, page));
            // Its pages are ready, so it ends at the first poll.
            let read = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(read, Poll::Ready(Ok((0..stored).collect())), "{stored} rows");
        }
    }

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
