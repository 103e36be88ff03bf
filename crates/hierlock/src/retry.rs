//! Retries of operations that are safe to retry.

use std::time::Duration;

use base::Backoff;

use crate::Error;

/// A retry policy: the number of attempts and the backoff between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Includes the first attempt.
    pub attempts: u32,
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 5, backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)) }
    }
}

impl Retry {
    /// Runs the operation until it succeeds, fails with an error that is not safe to retry, or has used up its attempts. Returns the
    /// last error.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use base::Clock;
    /// use hierlock::{LockManager, Options, Retry, Target};
    ///
    /// let locks = LockManager::in_process(&Options::default(), &Clock::system());
    /// let user = Target::user("u1")?;
    /// let lock = Retry::default().run(|| locks.acquire(user)).await?;
    /// # lock.release().await
    /// # }).unwrap();
    /// ```
    pub async fn run<T, F>(&self, mut operation: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut failures = 0;
        loop {
            let error = match operation().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            failures += 1;
            let Some(wait) = self.next_delay(failures, &error) else { return Err(error) };
            tracing::debug!(failures, cause = base::error::chain(&error), "retrying the lock operation");
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns the delay before the next attempt, after this many failures of which the last one was `error`. None if there is no next
    /// attempt.
    pub fn next_delay(&self, failures: u32, error: &Error) -> Option<Duration> {
        (error.is_safe_to_retry() && failures < self.attempts).then(|| self.backoff.after(failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn attempts(fail_with: impl Fn() -> Error) -> u32 {
        let mut attempts = 0;
        let retry = Retry { attempts: 4, backoff: Backoff::new(Duration::ZERO, Duration::ZERO) };
        let done: Result<(), Error> = retry
            .run(|| {
                attempts += 1;
                std::future::ready(Err(fail_with()))
            })
            .await;
        assert!(done.is_err());
        attempts
    }

    #[tokio::test]
    async fn only_safe_errors_are_retried() {
        assert_eq!(attempts(|| Error::Timeout(Duration::ZERO)).await, 4);
        assert_eq!(attempts(|| Error::Deadlock(sqlx::Error::PoolClosed)).await, 4);
        assert_eq!(attempts(|| Error::Lost).await, 1);
        assert_eq!(attempts(|| Error::NoTargets).await, 1);
    }

    #[tokio::test]
    async fn success_ends_the_retries() {
        let mut left = 2;
        let retry = Retry { attempts: 10, backoff: Backoff::new(Duration::ZERO, Duration::ZERO) };
        let done = retry.run(|| {
            left -= 1;
            std::future::ready(if left > 0 { Err(Error::Timeout(Duration::ZERO)) } else { Ok(left) })
        });
        assert_eq!(done.await.unwrap(), 0);
    }
}
