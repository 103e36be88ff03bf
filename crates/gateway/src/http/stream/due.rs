//! When a stream reads a store.

use std::time::Duration;

use base::Backoff;
use tokio::time::{Instant, sleep_until};

/// Between two attempts to read a store that is away.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// Whether something has to be read, from when on, and how often that failed in a row.
#[derive(Debug, Default)]
pub(super) struct Due {
    at: Option<Instant>,
    failures: u32,
}

impl Due {
    pub(super) fn now() -> Self {
        Self { at: Some(Instant::now()), failures: 0 }
    }

    /// Asks for a read. One that failed keeps its time: a busy stream does not shorten the backoff.
    pub(super) fn request(&mut self) {
        self.at.get_or_insert_with(Instant::now);
    }

    pub(super) fn is_now(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// Notes that the read begins. A request from here on asks for another one.
    pub(super) fn begin(&mut self) {
        self.at = None;
    }

    /// Notes that the read succeeded.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Notes that the read failed. It is due again after a backoff.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.at = Some(Instant::now() + AGAIN.after(self.failures));
    }

    /// Waits until a read is due. Waits for ever if none is asked for. Cancel safe.
    pub(super) async fn wait(&self) {
        match self.at {
            // Boxed, as it is rare and large.
            Some(at) => Box::pin(sleep_until(at)).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_read_is_due_again_however_often_it_fails() {
        let mut due = Due::now();
        for _ in 0..100 {
            assert!(due.is_now());
            due.begin();
            due.failed();
            assert!(!due.is_now());
            let began = Instant::now();
            due.wait().await;
            assert!(began.elapsed() <= AGAIN.max + Duration::from_millis(1), "{:?}", began.elapsed());
        }
        due.begin();
        due.succeeded();
        due.failed();
        let began = Instant::now();
        due.wait().await;
        assert!(began.elapsed() <= AGAIN.min + Duration::from_millis(1), "a success ends the backoff");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_shorten_the_backoff() {
        let mut due = Due::default();
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
    async fn a_request_during_a_read_asks_for_another() {
        let mut due = Due::now();
        due.begin();
        due.request();
        due.succeeded();
        assert!(due.is_now());
    }
}
