//! Connects to stores that may not be reachable yet when a process starts.

use std::time::Duration;

use base::error::Coded;
use base::{Backoff, error};
use runtime::lifecycle::Part;
use tokio::time::{Instant, timeout_at};

use crate::OpenError;

/// The backoff between attempts.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Waits for stores, for each up to `timeout`. Preparing one store does not eat into the timeout of the next one.
#[derive(Clone, Copy, Debug)]
pub struct StoreConnector {
    pub timeout: Duration,
}

impl StoreConnector {
    /// Connects to a store and reports its part as ready.
    pub async fn open<T, E>(
        &self,
        store: &'static str,
        part: &Part,
        open: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, OpenError>
    where
        E: Coded + Send + Sync + 'static,
    {
        let opened = self.connect(store, part, open).await?;
        part.ready();
        Ok(opened)
    }

    /// Connects to a store. Retries transient failures until the timeout, which also interrupts an attempt.
    pub async fn connect<T, E>(
        &self,
        store: &'static str,
        part: &Part,
        connect: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, OpenError>
    where
        E: Coded + Send + Sync + 'static,
    {
        self.attempts(store, part, connect, Some(Instant::now() + self.timeout)).await
    }

    /// Prepares a store, for example by a migration. The work itself may take any time; the timeout limits only how long the store may
    /// be unreachable.
    pub async fn prepare<T, E>(
        &self,
        store: &'static str,
        part: &Part,
        prepare: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, OpenError>
    where
        E: Coded + Send + Sync + 'static,
    {
        self.attempts(store, part, prepare, None).await
    }

    /// Retries transient failures until `deadline`. Without one the deadline is `timeout` after the first failure.
    async fn attempts<T, E>(
        &self,
        store: &'static str,
        part: &Part,
        attempt: impl AsyncFn() -> Result<T, E>,
        deadline: Option<Instant>,
    ) -> Result<T, OpenError>
    where
        E: Coded + Send + Sync + 'static,
    {
        let mut give_up_at = deadline;
        for failures in 1.. {
            let attempted = match deadline {
                Some(at) => {
                    timeout_at(at, attempt()).await.map_err(|elapsed| self.unreachable(store, elapsed))?
                }
                None => attempt().await,
            };
            let error = match attempted {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !error.is_transient() {
                return Err(OpenError::Unusable { store, source: error.into() });
            }
            let cause = error::chain(&error);
            part.not_ready(&cause);
            let again = Instant::now() + RETRY.after(failures);
            if again > *give_up_at.get_or_insert_with(|| Instant::now() + self.timeout) {
                return Err(self.unreachable(store, error));
            }
            tracing::warn!(outage = store, store, cause, "store is not reachable yet; retrying");
            tokio::time::sleep_until(again).await;
        }
        unreachable!("the range has no end")
    }

    fn unreachable(
        &self,
        store: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> OpenError {
        OpenError::Unreachable { store, after: self.timeout, source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use base::Code;
    use runtime::Readiness;
    use tokio::time::sleep;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const CONNECTOR: StoreConnector = StoreConnector { timeout: TIMEOUT };

    #[derive(Debug, thiserror::Error)]
    #[error("connection refused")]
    struct ConnectionRefused;

    impl Coded for ConnectionRefused {
        fn code(&self) -> Code {
            Code::Unavailable
        }
    }

    fn part() -> Part {
        Readiness::default().part("db")
    }

    async fn takes(time: Duration) -> Result<(), ConnectionRefused> {
        sleep(time).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn preparing_one_store_does_not_use_up_the_timeout_of_the_next() {
        CONNECTOR.prepare("db", &part(), async || takes(10 * TIMEOUT).await).await.unwrap();
        CONNECTOR.open("redis", &part(), async || takes(TIMEOUT / 2).await).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_starts_when_a_store_fails_during_preparation() {
        let failures = Cell::new(0);
        let work = async || {
            failures.set(failures.get() + 1);
            match failures.get() {
                1 => sleep(10 * TIMEOUT).await,
                5.. => return Ok(()),
                _ => {}
            }
            Err(ConnectionRefused)
        };
        CONNECTOR.prepare("db", &part(), work).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_applies_to_failing_and_to_silent_stores() {
        for prepare in [false, true] {
            let began = Instant::now();
            let failing = async || Err::<(), _>(ConnectionRefused);
            let failed = match prepare {
                true => CONNECTOR.prepare("db", &part(), failing).await,
                false => CONNECTOR.open("db", &part(), failing).await,
            };
            assert!(
                matches!(failed, Err(OpenError::Unreachable { source, .. }) if source.is::<ConnectionRefused>())
            );
            assert!(began.elapsed() <= TIMEOUT && began.elapsed() > TIMEOUT / 2, "{:?}", began.elapsed());
        }
        let began = Instant::now();
        let silent = async || std::future::pending::<Result<(), ConnectionRefused>>().await;
        assert!(matches!(CONNECTOR.open("db", &part(), silent).await, Err(OpenError::Unreachable { .. })));
        assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    }
}
