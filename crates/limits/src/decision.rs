//! Decisions on rate limits.

use std::time::Duration;

use crate::Check;

/// The decision on all checks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    pub allowed: bool,
    /// One per check, in their order.
    pub states: Vec<LimitState>,
    /// False if this process decided on its own because Redis was unreachable.
    pub shared: bool,
}

/// The state of a bucket after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    pub policy: &'static str,
    /// How many requests are allowed at once.
    pub quota: u64,
    /// The time in which the whole quota refills.
    pub window: Duration,
    /// How many requests are still allowed now.
    pub remaining: u64,
    /// The time until the whole quota is available again.
    pub reset: Duration,
    /// The time until this bucket allows a request, if it refused this one.
    pub retry_after: Option<Duration>,
}

impl LimitDecision {
    /// Returns the time until all buckets that refused the request will allow one. Returns none if no bucket refused it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.states.iter().filter_map(|state| state.retry_after).max()
    }

    /// Creates a decision from the debts of the buckets after it, in microseconds.
    pub(crate) fn new(checks: &[Check<'_>], allowed: bool, debts: &[u64], shared: bool) -> Self {
        let states = checks.iter().zip(debts).map(|(check, debt)| LimitState::new(check, allowed, *debt));
        Self { allowed, states: states.collect(), shared }
    }
}

impl LimitState {
    pub(crate) fn new(check: &Check<'_>, allowed: bool, debt: u64) -> Self {
        let Check { policy, rate, .. } = check;
        let wait = if allowed { 0 } else { rate.wait(debt) };
        Self {
            policy,
            quota: rate.quota(),
            window: rate.window(),
            remaining: rate.remaining(debt),
            reset: Duration::from_micros(debt),
            retry_after: (wait > 0).then(|| Duration::from_micros(wait)),
        }
    }
}
