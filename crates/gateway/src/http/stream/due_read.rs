//! Schedules a stream's reads of a store.

use std::time::Duration;

use base::Backoff;
use tokio::time::{Instant, sleep_until};

/// The backoff between attempts to read an unreachable store.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// Whether a read is due, when, and how often it has failed in a row.
#[derive(Debug, Default)]
pub(super) struct DueRead {
    at: Option<Instant>,
    failures: u32,
}

impl DueRead {
    pub(super) fn now() -> Self {
        Self { at: Some(Instant::now()), failures: 0 }
    }

    /// Requests a read. A failed read keeps its backoff, however often another one is requested.
    pub(super) fn request(&mut self) {
        self.at.get_or_insert_with(Instant::now);
    }

    pub(super) fn is_now(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// Returns whether a read is requested, now or after the backoff.
    pub(super) fn is_requested(&self) -> bool {
        self.at.is_some()
    }

    /// Records that the read starts. A request from now on causes another read.
    pub(super) fn begin(&mut self) {
        self.at = None;
    }

    /// Records that the read succeeded.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Records that the read failed. It is due again after the backoff.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.at = Some(Instant::now() + BACKOFF.after(self.failures));
    }

    /// Waits until a read is due. Waits forever if none is requested. Cancel safe.
    pub(super) async fn wait(&self) {
        match self.at {
            // Boxed because it is rare and large.
            Some(at) => Box::pin(sleep_until(at)).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_read_is_always_due_again() {
        let mut due = DueRead::now();
        for _ in 0..100 {
            assert!(due.is_now());
            due.begin();
            due.failed();
            assert!(!due.is_now());
            let started = Instant::now();
            due.wait().await;
            assert!(started.elapsed() <= BACKOFF.max + Duration::from_millis(1), "{:?}", started.elapsed());
        }
        due.begin();
        due.succeeded();
        due.failed();
        let started = Instant::now();
        due.wait().await;
        assert!(started.elapsed() <= BACKOFF.min + Duration::from_millis(1), "a success ends the backoff");
    }

    #[tokio::test(start_paused = true)]
    async fn request_does_not_shorten_the_backoff() {
        let mut due = DueRead::default();
        assert!(!due.is_now());
        due.request();
        assert!(due.is_now());
        due.begin();
        due.failed();
        due.request();
        assert!(!due.is_now());
        due.wait().await;
        assert!(due.is_now());
    }

    #[tokio::test(start_paused = true)]
    async fn request_during_a_read_causes_another_read() {
        let mut due = DueRead::now();
        due.begin();
        due.request();
        due.succeeded();
        assert!(due.is_now());
    }
}
