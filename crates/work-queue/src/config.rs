//! Settings of a queue.

use std::time::Duration;

use ::config::{Reader, Section};
use base::Backoff;

/// Settings of a queue and its workers.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many batches a process handles concurrently.
    pub workers: u32,
    /// How many items one claim takes at most.
    pub batch: u32,
    /// How often to query for items that another process has pushed, or that have become due.
    pub poll: Duration,
    /// How long a claim lasts unless it is renewed. A worker renews it after every third of this time.
    pub lease: Duration,
    /// After how many attempts an item is marked as failed.
    pub max_attempts: u32,
    /// The backoff between attempts.
    pub retry: Backoff,
    /// How long a finished item is kept.
    pub retention: Duration,
}

impl Config {
    /// Returns the largest number of items in a claim.
    pub(crate) fn max_claimed(&self) -> usize {
        self.batch.try_into().unwrap_or(usize::MAX)
    }
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        let config = Self {
            workers: reader.get_within("workers", 1..=64),
            batch: reader.get_within("batch", 1..=5_000),
            poll: reader.get_within("poll", Duration::from_millis(5)..=Duration::from_secs(60)),
            lease: reader.get_within("lease", Duration::from_secs(1)..=Duration::from_secs(3600)),
            max_attempts: reader.get_within("max_attempts", 1..=1_000),
            retry: Backoff::new(
                reader.get_within("retry_min", Duration::from_millis(10)..=DAY),
                reader.get_within("retry_max", Duration::from_millis(10)..=DAY),
            ),
            retention: reader.get_within("retention", Duration::from_secs(300)..=365 * DAY),
        };
        reader.check(&["retry_min", "retry_max"], config.retry.min <= config.retry.max, || {
            "retry_min must be at most retry_max".to_owned()
        });
        config
    }
}
