//! A circuit breaker for assigners: a failing assigner is not called for a while, then called for one match at a time.
//!
//! Every match requested from a failing allocator must be given back, and its tickets are held during the call. Without
//! the breaker an hour of failures would cost one call per tick, and one abandoned match per tick and match.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Backoff;
use tokio::time::Instant;

/// How long an assigner is not called after failures.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// How many attempts one call gets while the assigner is healthy, including the first. Few, because the tickets are
/// held meanwhile.
const MAX_ATTEMPTS: u32 = 3;

/// The circuit breaker of one assigner.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: Arc<Mutex<State>>,
    /// The profiles that use the assigner.
    pub(super) profiles: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct State {
    /// Consecutive failures.
    failures: u32,
    /// When the assigner may be called again.
    until: Option<Instant>,
    /// Whether a call is being retried. Only one is at a time.
    is_retrying: bool,
    /// Whether the failure is recorded in the store of tickets.
    is_reported: bool,
}

/// One call. It counts as failed unless it succeeds, also if it is dropped.
#[derive(Debug)]
pub(super) struct GuardedCall<'a> {
    breaker: &'a Breaker,
    /// The failures known when the call started. Calls that fail together count once.
    failures: u32,
    attempts: u32,
    /// Whether the assigner was healthy when the call started.
    may_retry: bool,
    is_retrying: bool,
    has_succeeded: bool,
}

impl Breaker {
    pub(super) fn new(profiles: Vec<Arc<str>>) -> Self {
        Self { profiles, ..Self::default() }
    }

    /// Returns the breaker of the same assigner for other profiles. Both share the state.
    pub(super) fn for_profiles(&self, profiles: Vec<Arc<str>>) -> Self {
        Self { state: self.state.clone(), profiles }
    }

    /// Returns how many matches may be requested now.
    pub(super) fn allowed_matches(&self) -> usize {
        let mut state = self.state();
        match state.until {
            None => usize::MAX,
            Some(until) if Instant::now() < until => 0,
            // Other calls wait until this one ends, or is overdue.
            Some(_) => {
                state.until = Some(Instant::now() + BACKOFF.max);
                1
            }
        }
    }

    pub(super) fn start_call(&self) -> GuardedCall<'_> {
        let failures = self.state().failures;
        GuardedCall {
            breaker: self,
            failures,
            attempts: 1,
            may_retry: failures == 0,
            is_retrying: false,
            has_succeeded: false,
        }
    }

    /// Returns the consecutive failures, and how long the assigner is not called from now on.
    pub(super) fn failures(&self) -> (u32, Duration) {
        let state = self.state();
        let pause = state.until.map(|until| until.saturating_duration_since(Instant::now()));
        (state.failures, pause.unwrap_or_default())
    }

    /// Sets whether the failure is recorded in the store of tickets. Returns the previous value.
    pub(super) fn set_reported(&self, is_reported: bool) -> bool {
        std::mem::replace(&mut self.state().is_reported, is_reported)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GuardedCall<'_> {
    /// Records a failed attempt. Returns how long to wait before a retry, or `None` if there is none.
    pub(super) fn retry_delay(&mut self, deadline: Instant) -> Option<Duration> {
        let mut state = self.breaker.state();
        if !self.may_retry || self.attempts == MAX_ATTEMPTS || state.is_retrying != self.is_retrying {
            return None;
        }
        let wait = BACKOFF.after(state.failures.saturating_add(1));
        if Instant::now() + wait >= deadline {
            return None;
        }
        self.attempts += 1;
        state.fail(&mut self.failures);
        (state.is_retrying, self.is_retrying) = (true, true);
        // Other calls wait until this one ends, or is overdue.
        state.until = Some(deadline);
        Some(wait)
    }

    pub(super) fn succeeded(mut self) {
        self.has_succeeded = true;
    }
}

impl State {
    fn fail(&mut self, known: &mut u32) {
        if self.failures == *known {
            self.failures = self.failures.saturating_add(1);
        }
        *known = self.failures;
    }
}

impl Drop for GuardedCall<'_> {
    fn drop(&mut self) {
        let mut state = self.breaker.state();
        if self.has_succeeded {
            *state = State { is_reported: state.is_reported, ..State::default() };
            return;
        }
        state.fail(&mut self.failures);
        state.is_retrying &= !self.is_retrying;
        // While another call is being retried, that call decides.
        if !state.is_retrying {
            state.until = Some(Instant::now() + BACKOFF.after(state.failures));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failing_assigner_pauses_then_gets_one_match_at_a_time() {
        let breaker = Breaker::default();
        assert_eq!(breaker.allowed_matches(), usize::MAX);
        drop((breaker.start_call(), breaker.start_call()));
        assert_eq!(breaker.failures().0, 1, "calls that fail together count once");
        assert_eq!(breaker.allowed_matches(), 0, "it pauses");
        tokio::time::advance(BACKOFF.min).await;
        assert_eq!(breaker.allowed_matches(), 1);
        assert_eq!(breaker.allowed_matches(), 0, "one call at a time");
        for _ in 0..10 {
            drop(breaker.start_call());
        }
        tokio::time::advance(BACKOFF.max / 2 - Duration::from_millis(1)).await;
        assert_eq!(breaker.allowed_matches(), 0, "it pauses longer each time");
        tokio::time::advance(BACKOFF.max).await;
        assert_eq!(breaker.allowed_matches(), 1);
        breaker.start_call().succeeded();
        assert_eq!(breaker.allowed_matches(), usize::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_is_retried_and_concurrent_calls_fail() {
        let breaker = Breaker::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut one, mut other) = (breaker.start_call(), breaker.start_call());
        let first = one.retry_delay(deadline).unwrap();
        assert!(other.retry_delay(deadline).is_none());
        drop(other);
        tokio::time::advance(BACKOFF.min).await;
        let second = one.retry_delay(deadline).unwrap();
        assert!(first <= BACKOFF.min && second >= BACKOFF.min, "{first:?} {second:?}");
        assert_eq!(breaker.allowed_matches(), 0, "no other call starts meanwhile");
        assert!(one.retry_delay(deadline).is_none());
        drop(one);
        assert_eq!(breaker.failures().0, 3);
        tokio::time::advance(BACKOFF.max).await;
        assert_eq!(breaker.allowed_matches(), 1);
        assert!(breaker.start_call().retry_delay(deadline).is_none(), "a failing assigner gets one attempt");
        tokio::time::advance(BACKOFF.max).await;
        breaker.start_call().succeeded();
        assert!(breaker.start_call().retry_delay(Instant::now()).is_none(), "the deadline is too close");
    }
}
