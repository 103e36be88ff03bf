//! Trying again what met somebody else's transaction.

use std::time::Duration;

use base::Backoff;

use crate::Error;

/// The first one included.
const ATTEMPTS: u32 = 8;
const BETWEEN: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));

/// Runs the attempt, which has a transaction of its own, until it does not meet another one or attempts are used up; then its last
/// error is returned. What counts as having met another one is for the caller to say: [`Error::is_conflict`], and more perhaps.
pub async fn retrying<T, E, F>(
    is_conflict: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut failures = 0;
    loop {
        let error = match attempt().await {
            Err(error) if is_conflict(&error) => error,
            done => return done,
        };
        failures += 1;
        if failures == ATTEMPTS {
            return Err(error);
        }
        tracing::debug!(failures, "trying again what met another transaction");
        tokio::time::sleep(BETWEEN.after(failures)).await;
    }
}

impl Error {
    /// Whether the transaction met another one, so that it may be tried again from the beginning.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Duplicate(_) | Self::Lock(hierlock::Error::Deadlock(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn attempts(fail_with: impl Fn() -> Error) -> u32 {
        let mut attempts = 0;
        let done: Result<(), Error> = retrying(Error::is_conflict, || {
            attempts += 1;
            std::future::ready(Err(fail_with()))
        })
        .await;
        assert!(done.is_err());
        attempts
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_conflict_is_tried_again() {
        let closed = || sqlx::Error::PoolClosed;
        assert_eq!(attempts(|| Error::Busy(closed())).await, ATTEMPTS);
        assert_eq!(attempts(|| Error::Duplicate(closed())).await, ATTEMPTS);
        assert_eq!(attempts(|| hierlock::Error::Deadlock(closed()).into()).await, ATTEMPTS);
        assert_eq!(attempts(|| Error::Unreachable(closed())).await, 1);
    }
}
