//! The one retry policy: exponential, capped, with jitter.

use std::time::Duration;

/// How long to wait before attempt `n + 1`.
///
/// The wait is drawn from the upper half of `min · 2ⁿ` (capped at `max`): half of it is certain, so that a retry is never
/// immediate, and half is random, so that a crowd that failed together does not return together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

impl Backoff {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    /// The wait after `failures` failures in a row (the first failure is 1).
    pub fn after(&self, failures: u32) -> Duration {
        self.after_with(failures, fastrand::f64())
    }

    /// As [`after`](Self::after), with the randomness (0 to 1) given.
    pub fn after_with(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.min.saturating_mul(1 << doublings).min(self.max);
        full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

    #[test]
    fn doubles_until_the_cap() {
        let full = |n| POLICY.after_with(n, 1.0).as_millis();
        assert_eq!(
            [full(1), full(2), full(3), full(7), full(8), full(u32::MAX)],
            [100, 200, 400, 6400, 10_000, 10_000]
        );
        assert_eq!(POLICY.after_with(1, 0.0).as_millis(), 50, "and at least half of it");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn at_least_half_is_waited(failures in 1_u32.., jitter in 0.0..=1.0) {
            let full = POLICY.after_with(failures, 1.0);
            prop_assert_eq!(POLICY.after_with(failures, 0.0), full / 2);
            for wait in [POLICY.after_with(failures, jitter), POLICY.after(failures)] {
                prop_assert!(full / 2 <= wait && wait <= full, "{:?} of {:?}", wait, full);
            }
        }
    }
}
