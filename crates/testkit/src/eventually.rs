//! Polls until a condition holds, with a deadline instead of fixed sleeps.

use std::fmt::Display;
use std::panic::Location;
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);

/// The result of one poll: the condition holds, or the reason why not yet.
pub trait Observation {
    type Value;

    /// Returns the value if the condition holds, else a description of what was observed.
    fn into_result(self) -> Result<Self::Value, String>;
}

impl Observation for bool {
    type Value = ();

    fn into_result(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

impl<T> Observation for Option<T> {
    type Value = T;

    fn into_result(self) -> Result<T, String> {
        self.ok_or_else(|| "None".to_owned())
    }
}

impl<T, E: Display> Observation for Result<T, E> {
    type Value = T;

    fn into_result(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Calls `poll` until it returns `true`, `Some` or `Ok`, and returns the value.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut polls = 0;
/// let third = testkit::eventually("the third poll", Duration::from_secs(1), || {
///     polls += 1;
///     let now = polls;
///     async move { if now < 3 { Err(format!("poll {now}")) } else { Ok(now) } }
/// });
/// assert_eq!(third.await, 3);
/// # });
/// ```
///
/// # Panics
/// If `deadline` passes first. The message contains `what`, the deadline and the last observation.
#[track_caller]
pub fn eventually<O, F, P>(what: &str, deadline: Duration, mut poll: P) -> impl Future<Output = O::Value>
where
    O: Observation,
    F: Future<Output = O>,
    P: FnMut() -> F,
{
    // Not an async function: that would report its own line instead of the test's.
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        let mut backoff = PollBackoff::default();
        let mut last = None;
        loop {
            let left = deadline.saturating_sub(started.elapsed());
            match tokio::time::timeout(left, poll()).await.map(O::into_result) {
                Ok(Ok(value)) => return value,
                Ok(Err(seen)) => last = Some(seen),
                // A poll that hangs ends at the deadline and keeps the observation before it.
                Err(_) => last = Some(last.unwrap_or_else(|| "nothing, the first poll did not end".into())),
            }
            if started.elapsed() >= deadline {
                let last = last.unwrap_or_default();
                panic!("{what}: not within {deadline:?} (awaited at {caller}); last seen: {last}");
            }
            backoff.wait().await;
        }
    }
}

/// The wait between two polls: short at first, so that fast cases stay fast, then longer.
#[derive(Debug)]
pub(crate) struct PollBackoff {
    next: Duration,
}

impl Default for PollBackoff {
    fn default() -> Self {
        Self { next: SHORTEST }
    }
}

impl PollBackoff {
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 3 / 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn returns_the_value_of_the_poll() {
        let polls = AtomicU32::new(0);
        let poll = || async { Some(polls.fetch_add(1, Ordering::Relaxed)).filter(|n| *n >= 2) };
        assert_eq!(eventually("the third poll", Duration::from_secs(5), poll).await, 2);
        let done = eventually("a flag", Duration::from_secs(5), || async { true });
        assert_eq!(done.await, ());
    }

    #[tokio::test]
    async fn panics_with_the_last_observation() {
        let poll = || async { Err::<(), _>("2 of 3 rows") };
        let text = panic_text(eventually("three rows", Duration::from_millis(20), poll)).await;
        assert!(text.starts_with("three rows: not within 20ms (awaited at "), "{text}");
        assert!(text.contains("eventually.rs:"), "{text}");
        assert!(text.ends_with("last seen: 2 of 3 rows"), "{text}");
    }

    #[tokio::test]
    async fn hanging_poll_ends_at_the_deadline() {
        let poll = || std::future::pending::<bool>();
        let text = panic_text(eventually("an answer", Duration::from_millis(20), poll)).await;
        assert!(text.ends_with("nothing, the first poll did not end"), "{text}");
    }

    async fn panic_text(future: impl Future) -> String {
        let panic = std::panic::AssertUnwindSafe(future).catch_unwind().await.err().expect("a panic");
        *panic.downcast::<String>().expect("a panic with a text")
    }
}
