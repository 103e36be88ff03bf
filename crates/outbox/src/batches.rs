//! Finds the batch row of an event. A row has its own id, so an event in it has no index; its time leads to the row.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use work_queue::{Filter, ItemView};

use crate::{Outbox, event};

/// How many rows are examined in each state. This bounds the cost of a search on a busy system.
const EXAMINED: u32 = 2_000;
/// How many milliseconds the clock of the process that made the id may be ahead of the database's.
const CLOCK_AHEAD: i64 = 500;
/// How long after its id an event is searched for. It is normally published within milliseconds.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(60);

/// Finds the batch row that contains the event with this id. Returns none if the id has no time in it.
pub(crate) async fn row_of_event(outbox: &Outbox, id: Uuid) -> Result<Option<ItemView>, db::Error> {
    let Some(made) = time_of(id) else { return Ok(None) };
    // As in the first line of the row. The data of other events may contain the id as well.
    let text = event::batched_id(id);
    row_containing(outbox, &text, made, PUBLISHED_WITHIN).await
}

/// Finds a batch row that contains this text and was published in this period, or is not published yet.
pub(crate) async fn row_containing(
    outbox: &Outbox,
    text: &str,
    since: Timestamp,
    within: Duration,
) -> Result<Option<ItemView>, db::Error> {
    let since = Timestamp::from_millis(since.as_millis().saturating_sub(CLOCK_AHEAD));
    let soon = (since, since.after(within));
    // The column has the time of the next attempt for open rows, and the time of the last one for failed rows.
    let any = (Timestamp::from_millis(0), Timestamp::from_millis(i64::MAX));
    for (filter, period) in [(Filter::Done, soon), (Filter::Open, any), (Filter::Failed, any)] {
        let queue = outbox.queue();
        let found = queue.find_containing(filter, period, Uuid::nil(), text.as_bytes(), EXAMINED).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Returns the time in an id, if it is one of those that contain a time.
fn time_of(id: Uuid) -> Option<Timestamp> {
    let (seconds, nanos) = id.get_timestamp().filter(|_| id.get_version_num() == 7)?.to_unix();
    let millis = i64::try_from(seconds).ok()?.checked_mul(1_000)?;
    Some(Timestamp::from_millis(millis + i64::from(nanos / 1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_an_id_is_the_time_at_which_it_was_made() {
        let id: Uuid = "0198c0de-0000-7000-8000-000000000001".parse().unwrap();
        assert_eq!(time_of(id), Some(Timestamp::from_millis(0x0198_c0de_0000)));
        assert_eq!(time_of(Uuid::nil()), None);
        assert_eq!(time_of(Uuid::from_u128(u128::MAX)), None);
    }
}
