//! Remembers that a store is away, so that not every caller waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a store that failed is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// The store answers.
const CLOSED: u64 = 0;

#[derive(Debug)]
pub(crate) struct Breaker {
    origin: Instant,
    /// When the store may be asked again, in microseconds since the origin; [`CLOSED`] while it answers.
    next: AtomicU64,
}

/// Whether the store may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// By everybody.
    Open,
    /// By this caller alone, to see whether it is back.
    Probe,
    /// Not now.
    No,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), next: AtomicU64::new(CLOSED) }
    }

    pub(crate) fn permit(&self) -> Permit {
        let next = self.next.load(Ordering::Relaxed);
        if next == CLOSED {
            return Permit::Open;
        }
        let now = self.now();
        if now < next {
            return Permit::No;
        }
        // Whoever gets here first asks. The others, and those who come while it waits, need not.
        let later = now + micros(PAUSE);
        let won = self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won { Permit::Probe } else { Permit::No }
    }

    /// The store failed. Says whether that is news.
    pub(crate) fn failed(&self) -> bool {
        self.next.swap(self.now() + micros(PAUSE), Ordering::Relaxed) == CLOSED
    }

    /// The store answered a probe. Other answers say nothing: they may have been on their way before it went away.
    pub(crate) fn recovered(&self) {
        self.next.store(CLOSED, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        micros(self.origin.elapsed())
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_caller_a_second_asks_a_store_that_is_away() {
        let breaker = Breaker::new();
        assert_eq!([breaker.permit(), breaker.permit()], [Permit::Open; 2]);
        assert!(breaker.failed());
        assert!(!breaker.failed(), "those that were under way fail too, which is no news");
        for _ in 0..3 {
            assert_eq!(breaker.permit(), Permit::No);
            tokio::time::advance(PAUSE - Duration::from_micros(1)).await;
            assert_eq!(breaker.permit(), Permit::No);
            tokio::time::advance(Duration::from_micros(1)).await;
            assert_eq!([breaker.permit(), breaker.permit()], [Permit::Probe, Permit::No]);
        }
        breaker.recovered();
        assert_eq!([breaker.permit(), breaker.permit()], [Permit::Open; 2]);
    }

    #[test]
    fn of_those_who_come_at_once_one_asks() {
        const CALLERS: usize = 4;
        let breaker = Breaker::new();
        std::thread::sleep(Duration::from_micros(2));
        for round in 0..500 {
            // Since long ago.
            breaker.next.store(1, Ordering::Relaxed);
            let (start, probes) = (std::sync::Barrier::new(CALLERS), std::sync::atomic::AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..CALLERS {
                    scope.spawn(|| {
                        start.wait();
                        probes.fetch_add(usize::from(breaker.permit() == Permit::Probe), Ordering::Relaxed);
                    });
                }
            });
            assert_eq!(probes.into_inner(), 1, "round {round}");
        }
    }
}
