//! The one retry policy: exponential, capped, with jitter.

use std::time::Duration;

/// Computes how long to wait before the next attempt.
///
/// The wait is between 50 % and 100 % of `min · 2ⁿ`, capped at `max`. The fixed half keeps a retry from being immediate. The
/// random half spreads the retries of clients that failed at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

impl Backoff {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    /// Returns the wait after `failures` consecutive failures (1 for the first one).
    pub fn after(&self, failures: u32) -> Duration {
        self.after_with_jitter(failures, fastrand::f64())
    }

    /// As [`after`](Self::after), with the random part (0 to 1) as an argument.
    pub fn after_with_jitter(&self, failures: u32, jitter: f64) -> Duration {
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
        let full = |n| POLICY.after_with_jitter(n, 1.0).as_millis();
        assert_eq!(
            [full(1), full(2), full(3), full(7), full(8), full(u32::MAX)],
            [100, 200, 400, 6400, 10_000, 10_000]
        );
        assert_eq!(POLICY.after_with_jitter(1, 0.0).as_millis(), 50, "at least half of the full wait");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn wait_is_at_least_half_of_the_full_wait(failures in 1_u32.., jitter in 0.0..=1.0) {
            let full = POLICY.after_with_jitter(failures, 1.0);
            prop_assert_eq!(POLICY.after_with_jitter(failures, 0.0), full / 2);
            for wait in [POLICY.after_with_jitter(failures, jitter), POLICY.after(failures)] {
                prop_assert!(full / 2 <= wait && wait <= full, "{:?} of {:?}", wait, full);
            }
        }
    }
}
