//! Waiting for something to become true, with a deadline and without guessed sleeps.

use std::fmt::Display;
use std::panic::Location;
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);

/// What a look at the world may answer: it is so, or why it is not so yet.
pub trait Observation {
    /// What there is once it is so.
    type Value;

    /// The value, or what was seen instead.
    fn seen(self) -> Result<Self::Value, String>;
}

impl Observation for bool {
    type Value = ();

    fn seen(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

impl<T> Observation for Option<T> {
    type Value = T;

    fn seen(self) -> Result<T, String> {
        self.ok_or_else(|| "None".to_owned())
    }
}

impl<T, E: Display> Observation for Result<T, E> {
    type Value = T;

    fn seen(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Looks again and again until `look` answers `true`, `Some` or `Ok`, and returns what it found.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut looks = 0;
/// let third = testkit::eventually("the third look", Duration::from_secs(1), || {
///     looks += 1;
///     let now = looks;
///     async move { if now < 3 { Err(format!("look {now}")) } else { Ok(now) } }
/// });
/// assert_eq!(third.await, 3);
/// # });
/// ```
///
/// # Panics
/// When `deadline` passes first, naming `what` was awaited, for how long, and what was seen last.
#[track_caller]
pub fn eventually<O, F, L>(what: &str, deadline: Duration, mut look: L) -> impl Future<Output = O::Value>
where
    O: Observation,
    F: Future<Output = O>,
    L: FnMut() -> F,
{
    // An async function would report its own line, not the test's.
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        let mut pace = Pace::default();
        let mut last = None;
        loop {
            let left = deadline.saturating_sub(started.elapsed());
            match tokio::time::timeout(left, look()).await.map(O::seen) {
                Ok(Ok(value)) => return value,
                Ok(Err(seen)) => last = Some(seen),
                // A look that hangs must not outlast the deadline, nor hide what was seen before.
                Err(_) => last = Some(last.unwrap_or_else(|| "nothing, the first look did not end".into())),
            }
            if started.elapsed() >= deadline {
                let last = last.unwrap_or_default();
                panic!("{what}: not within {deadline:?} (awaited at {caller}); last seen: {last}");
            }
            pace.rest().await;
        }
    }
}

/// Rests between two looks: short at first, so that the quick case is quick, then longer.
#[derive(Debug)]
pub(crate) struct Pace {
    next: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { next: SHORTEST }
    }
}

impl Pace {
    pub(crate) async fn rest(&mut self) {
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
    async fn returns_what_was_found() {
        let looks = AtomicU32::new(0);
        let look = || async { Some(looks.fetch_add(1, Ordering::Relaxed)).filter(|n| *n >= 2) };
        assert_eq!(eventually("the third look", Duration::from_secs(5), look).await, 2);
        let done = eventually("a flag", Duration::from_secs(5), || async { true });
        assert_eq!(done.await, ());
    }

    #[tokio::test]
    async fn panics_with_what_was_seen_last() {
        let look = || async { Err::<(), _>("2 of 3 rows") };
        let text = panic_text(eventually("three rows", Duration::from_millis(20), look)).await;
        assert!(text.starts_with("three rows: not within 20ms (awaited at "), "{text}");
        assert!(text.contains("eventually.rs:"), "{text}");
        assert!(text.ends_with("last seen: 2 of 3 rows"), "{text}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_cut_short() {
        let look = || std::future::pending::<bool>();
        let text = panic_text(eventually("an answer", Duration::from_millis(20), look)).await;
        assert!(text.ends_with("nothing, the first look did not end"), "{text}");
    }

    async fn panic_text(future: impl Future) -> String {
        let panic = std::panic::AssertUnwindSafe(future).catch_unwind().await.err().expect("a panic");
        *panic.downcast::<String>().expect("a panic with a text")
    }
}
