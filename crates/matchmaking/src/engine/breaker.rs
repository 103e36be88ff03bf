//! Spares an assigner that fails: it is left alone for a while, then asked for one match at a time.
//!
//! Every match that a failing allocator was asked for has to be given back, and its tickets are held while it is asked. Without this an
//! hour of failures would make as many calls as there are ticks, and as many abandoned matches as ticks times matches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Backoff;
use tokio::time::Instant;

/// How long an assigner is left alone after failures.
pub(super) const REST: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// How often one question is asked while the assigner is believed to be well, the first time included. Few, because its tickets are held
/// meanwhile.
const ATTEMPTS: u32 = 3;

/// What an engine knows of one assigner.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: Mutex<State>,
    /// The profiles that use it.
    pub(super) profiles: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures in a row.
    failures: u32,
    /// When it may be asked again.
    until: Option<Instant>,
    /// Whether a question is being repeated. One at a time is.
    is_repeating: bool,
    /// Whether the store of tickets was given a failure.
    is_reported: bool,
}

/// One question. Unless it is answered it has failed, also if it is dropped.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    breaker: &'a Breaker,
    /// How many failures it knows of: questions that fail together count once.
    failures: u32,
    attempts: u32,
    /// Whether the assigner was believed to be well when it began.
    may_repeat: bool,
    is_repeating: bool,
    has_succeeded: bool,
}

impl Breaker {
    pub(super) fn new(profiles: Vec<Arc<str>>) -> Self {
        Self { profiles, ..Self::default() }
    }

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
        let failures = self.state().failures;
        Trial {
            breaker: self,
            failures,
            attempts: 1,
            may_repeat: failures == 0,
            is_repeating: false,
            has_succeeded: false,
        }
    }

    /// Failures in a row, and how long the assigner is left alone from now on.
    pub(super) fn failing(&self) -> (u32, Duration) {
        let state = self.state();
        let rest = state.until.map(|until| until.saturating_duration_since(Instant::now()));
        (state.failures, rest.unwrap_or_default())
    }

    /// Notes whether the store of tickets was given a failure. Returns what was noted before.
    pub(super) fn report(&self, is_reported: bool) -> bool {
        std::mem::replace(&mut self.state().is_reported, is_reported)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trial<'_> {
    /// Notes that an attempt failed. Returns how long to wait before the same question is asked again, if it is to be.
    pub(super) fn repeat_after(&mut self, deadline: Instant) -> Option<Duration> {
        let mut state = self.breaker.state();
        if !self.may_repeat || self.attempts == ATTEMPTS || state.is_repeating != self.is_repeating {
            return None;
        }
        let wait = REST.after(state.failures.saturating_add(1));
        if Instant::now() + wait >= deadline {
            return None;
        }
        self.attempts += 1;
        state.fail(&mut self.failures);
        (state.is_repeating, self.is_repeating) = (true, true);
        // Others wait until this one has ended, or is overdue.
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

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let mut state = self.breaker.state();
        if self.has_succeeded {
            *state = State { is_reported: state.is_reported, ..State::default() };
            return;
        }
        state.fail(&mut self.failures);
        state.is_repeating &= !self.is_repeating;
        // While another question is repeated, that one decides.
        if !state.is_repeating {
            state.until = Some(Instant::now() + REST.after(state.failures));
        }
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
        assert_eq!(breaker.failing().0, 1, "those that fail together count once");
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

    #[tokio::test(start_paused = true)]
    async fn one_question_is_repeated_a_few_times_and_the_others_are_given_up() {
        let breaker = Breaker::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut one, mut other) = (breaker.begin(), breaker.begin());
        let first = one.repeat_after(deadline).unwrap();
        assert!(other.repeat_after(deadline).is_none());
        drop(other);
        tokio::time::advance(REST.min).await;
        let second = one.repeat_after(deadline).unwrap();
        assert!(first <= REST.min && second >= REST.min, "{first:?} {second:?}");
        assert_eq!(breaker.limit(), 0, "nothing else is asked meanwhile");
        assert!(one.repeat_after(deadline).is_none());
        drop(one);
        assert_eq!(breaker.failing().0, 3);
        tokio::time::advance(REST.max).await;
        assert_eq!(breaker.limit(), 1);
        assert!(breaker.begin().repeat_after(deadline).is_none(), "an assigner that fails is asked once");
        tokio::time::advance(REST.max).await;
        breaker.begin().succeeded();
        assert!(breaker.begin().repeat_after(Instant::now()).is_none(), "there is no time for it");
    }
}
