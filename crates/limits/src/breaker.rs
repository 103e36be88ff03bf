//! A circuit breaker: while a store is unreachable, only one caller per second waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The time between two probes of a failed store.
const PAUSE: Duration = Duration::from_secs(1);

/// The value of `next_probe` while the store answers.
const CLOSED: u64 = 0;

#[derive(Debug)]
pub(crate) struct Breaker {
    origin: Instant,
    /// When the store may be probed again, in microseconds since the origin; [`CLOSED`] while it answers.
    next_probe: AtomicU64,
}

/// Whether a caller may use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// The store answers: every caller may use it.
    Open,
    /// Only this caller may use it, to check whether it answers again.
    Probe,
    /// The caller must not use it now.
    No,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), next_probe: AtomicU64::new(CLOSED) }
    }

    pub(crate) fn permit(&self) -> Permit {
        let next = self.next_probe.load(Ordering::Relaxed);
        if next == CLOSED {
            return Permit::Open;
        }
        let now = self.now();
        if now < next {
            return Permit::No;
        }
        // The first caller probes. All others, until the next probe is due, do not wait.
        let later = now + micros(PAUSE);
        let won = self.next_probe.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won { Permit::Probe } else { Permit::No }
    }

    /// Records a failure of the store. Returns whether the store was considered reachable before.
    pub(crate) fn failed(&self) -> bool {
        self.next_probe.swap(self.now() + micros(PAUSE), Ordering::Relaxed) == CLOSED
    }

    /// Records that the store answered a probe. Other responses do not count: they may have been sent before the outage.
    pub(crate) fn recovered(&self) {
        self.next_probe.store(CLOSED, Ordering::Relaxed);
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
    async fn one_caller_per_second_probes_an_unreachable_store() {
        let breaker = Breaker::new();
        assert_eq!([breaker.permit(), breaker.permit()], [Permit::Open; 2]);
        assert!(breaker.failed());
        assert!(
            !breaker.failed(),
            "requests in flight fail too, but only the first failure opens the breaker"
        );
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
    fn one_of_several_concurrent_callers_probes() {
        const CALLERS: usize = 4;
        let breaker = Breaker::new();
        std::thread::sleep(Duration::from_micros(2));
        for round in 0..500 {
            // The probe is overdue.
            breaker.next_probe.store(1, Ordering::Relaxed);
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
