//! Retries after conflicts between transactions.

use std::time::Duration;

use base::Backoff;

use crate::Error;

/// Includes the first attempt.
const ATTEMPTS: u32 = 8;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));

/// Runs `attempt`, which must begin its own transaction, until it does not fail with a conflict. Returns the last error when the attempts
/// are used up. The caller defines what a conflict is, usually with [`Error::is_conflict`].
pub async fn retry_conflicts<T, E, F>(
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
        tracing::debug!(failures, "retrying a transaction after a conflict");
        tokio::time::sleep(BACKOFF.after(failures)).await;
    }
}

impl Error {
    /// Returns whether the transaction conflicted with another one and can be retried from the beginning.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Duplicate(_) | Self::Lock(hierlock::Error::Deadlock(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn attempts(fail_with: impl Fn() -> Error) -> u32 {
        let mut attempts = 0;
        let done: Result<(), Error> = retry_conflicts(Error::is_conflict, || {
            attempts += 1;
            std::future::ready(Err(fail_with()))
        })
        .await;
        assert!(done.is_err());
        attempts
    }

    #[tokio::test(start_paused = true)]
    async fn only_conflicts_are_retried() {
        let closed = || sqlx::Error::PoolClosed;
        assert_eq!(attempts(|| Error::Busy(closed())).await, ATTEMPTS);
        assert_eq!(attempts(|| Error::Duplicate(closed())).await, ATTEMPTS);
        assert_eq!(attempts(|| hierlock::Error::Deadlock(closed()).into()).await, ATTEMPTS);
        assert_eq!(attempts(|| Error::Unreachable(closed())).await, 1);
    }
}
