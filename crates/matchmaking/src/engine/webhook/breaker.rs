//! Spares a service that fails: it is left alone for a while, then asked for one match at a time.
//!
//! Every match that a failing service was asked for has to be given back. Without this an hour of failures would make as many
//! abandoned matches as there are ticks times matches.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Backoff;
use tokio::time::Instant;

/// How long a service is left alone after failures.
const REST: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Failures in a row.
    failures: u32,
    /// When it may be asked again.
    until: Option<Instant>,
}

/// One call. Unless it succeeds it has failed, also if it is dropped.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    breaker: &'a Breaker,
    /// How many failures there were when it began: calls that fail together count once.
    failures: u32,
    has_succeeded: bool,
}

impl Breaker {
    /// Returns how many matches may be asked for now.
    pub(super) fn limit(&self) -> usize {
        let mut state = self.state();
        match state.until {
            None => usize::MAX,
            Some(until) if Instant::now() < until => 0,
            // Others wait until this trial has ended, or is overdue.
            Some(_) => {
                state.until = Some(Instant::now() + REST.max);
                1
            }
        }
    }

    pub(super) fn begin(&self) -> Trial<'_> {
        Trial { breaker: self, failures: self.state().failures, has_succeeded: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trial<'_> {
    pub(super) fn succeeded(mut self) {
        self.has_succeeded = true;
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let mut state = self.breaker.state();
        if self.has_succeeded {
            *state = State::default();
            return;
        }
        if state.failures == self.failures {
            state.failures = state.failures.saturating_add(1);
        }
        state.until = Some(Instant::now() + REST.after(state.failures));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_it_rests_and_is_asked_for_one_match_at_a_time() {
        let breaker = Breaker::default();
        assert_eq!(breaker.limit(), usize::MAX);
        drop((breaker.begin(), breaker.begin()));
        assert_eq!(breaker.limit(), 0, "it rests");
        tokio::time::advance(REST.min).await;
        assert_eq!(breaker.limit(), 1);
        assert_eq!(breaker.limit(), 0, "one trial at a time");
        for _ in 0..10 {
            drop(breaker.begin());
        }
        tokio::time::advance(REST.max / 2 - Duration::from_millis(1)).await;
        assert_eq!(breaker.limit(), 0, "it rests for longer each time");
        tokio::time::advance(REST.max).await;
        assert_eq!(breaker.limit(), 1);
        breaker.begin().succeeded();
        assert_eq!(breaker.limit(), usize::MAX);
    }
}
