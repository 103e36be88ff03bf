//! Trying again what met somebody else's transaction.

use std::time::Duration;

use base::Backoff;

use crate::Error;

/// The first one included.
const ATTEMPTS: u32 = 8;
const BETWEEN: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));

/// Runs the attempt until it does not meet another one, or attempts are used up; then its last error is returned.
pub(crate) async fn retrying<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = 0;
    loop {
        let error = match attempt().await {
            Err(error) if error.is_conflict() => error,
            done => return done,
        };
        failures += 1;
        if failures == ATTEMPTS {
            return Err(error);
        }
        tracing::debug!(failures, cause = base::error::chain(&error), "trying again");
        tokio::time::sleep(BETWEEN.after(failures)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn attempts(fail_with: impl Fn() -> Error) -> u32 {
        let mut attempts = 0;
        let done: Result<(), Error> = retrying(|| {
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
        assert_eq!(attempts(|| db::Error::Busy(closed()).into()).await, ATTEMPTS);
        assert_eq!(attempts(|| db::Error::Duplicate(closed()).into()).await, ATTEMPTS);
        assert_eq!(attempts(|| db::Error::from(hierlock::Error::Deadlock(closed())).into()).await, ATTEMPTS);
        assert_eq!(attempts(|| Error::Raced).await, ATTEMPTS);
        assert_eq!(attempts(|| db::Error::Unreachable(closed()).into()).await, 1);
        assert_eq!(attempts(|| Error::LastIdentity).await, 1);
    }
}
