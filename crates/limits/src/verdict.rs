//! What a decision says.

use std::time::Duration;

use crate::Check;

/// A decision over all checks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// One per check, in their order.
    pub states: Vec<State>,
    /// False when this process decided alone because Redis was away.
    pub shared: bool,
}

/// A bucket after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub policy: &'static str,
    /// How many are allowed at once.
    pub quota: u64,
    /// The time in which the whole quota is allowed again.
    pub window: Duration,
    /// How many are allowed at once from now.
    pub remaining: u64,
    /// When the whole quota is left again.
    pub reset: Duration,
    /// When to come back, if it was this bucket that refused.
    pub retry_after: Option<Duration>,
}

impl Verdict {
    /// When to come back, if anything refused: when all buckets that did will allow one.
    pub fn retry_after(&self) -> Option<Duration> {
        self.states.iter().filter_map(|state| state.retry_after).max()
    }

    /// From the debts of the buckets after the decision, in microseconds.
    pub(crate) fn new(checks: &[Check<'_>], allowed: bool, debts: &[u64], shared: bool) -> Self {
        let states = checks.iter().zip(debts).map(|(check, debt)| State::new(check, allowed, *debt));
        Self { allowed, states: states.collect(), shared }
    }
}

impl State {
    fn new(check: &Check<'_>, allowed: bool, debt: u64) -> Self {
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
