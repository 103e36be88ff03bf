//! Stores that may not be there yet when a process starts.

use std::time::Duration;

use base::error::Coded;
use base::{Backoff, error};
use runtime::lifecycle::Part;
use tokio::time::{Instant, timeout_at};

use crate::OpenError;

/// Between attempts.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Waits for stores, each for the whole `timeout`: preparing one store does not eat into the next store's time.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    pub timeout: Duration,
}

impl Reach {
    /// Connects to a store that is ready once it answers.
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

    /// Connects to a store. Tries until it answers or refuses, or the time is over, also in the middle of an attempt.
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

    /// Prepares a store, however long that takes (a migration); only the store's absence is limited in time.
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

    /// Retries passing failures until `cut_off`, or without one until `timeout` after the first failure.
    async fn attempts<T, E>(
        &self,
        store: &'static str,
        part: &Part,
        attempt: impl AsyncFn() -> Result<T, E>,
        cut_off: Option<Instant>,
    ) -> Result<T, OpenError>
    where
        E: Coded + Send + Sync + 'static,
    {
        let mut deadline = cut_off;
        for failures in 1.. {
            let attempted = match cut_off {
                Some(at) => timeout_at(at, attempt()).await.map_err(|late| self.unreachable(store, late))?,
                None => attempt().await,
            };
            let error = match attempted {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !error.is_passing() {
                return Err(OpenError::Unusable { store, source: error.into() });
            }
            let cause = error::chain(&error);
            part.not_ready(&cause);
            let again = Instant::now() + PAUSE.after(failures);
            if again > *deadline.get_or_insert_with(|| Instant::now() + self.timeout) {
                return Err(self.unreachable(store, error));
            }
            tracing::warn!(outage = store, store, cause, "not reachable yet");
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
    const REACH: Reach = Reach { timeout: TIMEOUT };

    #[derive(Debug, thiserror::Error)]
    #[error("away")]
    struct Away;

    impl Coded for Away {
        fn code(&self) -> Code {
            Code::Unavailable
        }
    }

    fn part() -> Part {
        Readiness::default().part("db")
    }

    async fn takes(time: Duration) -> Result<(), Away> {
        sleep(time).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_first_store_takes_to_be_prepared_does_not_make_the_next_one_late() {
        REACH.prepare("db", &part(), async || takes(10 * TIMEOUT).await).await.unwrap();
        REACH.open("redis", &part(), async || takes(TIMEOUT / 2).await).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_goes_away_while_it_is_prepared_is_waited_for_from_then_on() {
        let failures = Cell::new(0);
        let work = async || {
            failures.set(failures.get() + 1);
            match failures.get() {
                1 => sleep(10 * TIMEOUT).await,
                5.. => return Ok(()),
                _ => {}
            }
            Err(Away)
        };
        REACH.prepare("db", &part(), work).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_over_for_who_fails_and_for_who_says_nothing() {
        for prepare in [false, true] {
            let began = Instant::now();
            let away = async || Err::<(), _>(Away);
            let failed = match prepare {
                true => REACH.prepare("db", &part(), away).await,
                false => REACH.open("db", &part(), away).await,
            };
            assert!(matches!(failed, Err(OpenError::Unreachable { source, .. }) if source.is::<Away>()));
            assert!(began.elapsed() <= TIMEOUT && began.elapsed() > TIMEOUT / 2, "{:?}", began.elapsed());
        }
        let began = Instant::now();
        let silent = async || std::future::pending::<Result<(), Away>>().await;
        assert!(matches!(REACH.open("db", &part(), silent).await, Err(OpenError::Unreachable { .. })));
        assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    }
}
