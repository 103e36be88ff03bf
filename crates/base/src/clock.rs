//! Time as a parameter.
//!
//! A [`Clock`] is for what this process decides alone. Leases and lifetimes that several processes compare use the clock of
//! the store they live in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch: the form in which every store keeps time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How far this is from `other`, in whichever direction.
    pub const fn distance(self, other: Self) -> Duration {
        Duration::from_millis(self.0.abs_diff(other.0))
    }
}

/// Tells the time. Clones of a manual clock move together.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until it is moved.
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                #[expect(clippy::disallowed_methods, reason = "the one place that asks the machine")]
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(since_epoch.as_millis().try_into().unwrap_or(i64::MAX))
            }
            Source::Manual(now) => Timestamp(now.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock on; the system clock moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(now) = &self.0 {
            now.fetch_add(by.as_millis().try_into().unwrap_or(i64::MAX), Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Source::System => "system",
            Source::Manual(_) => "manual",
        };
        write!(f, "Clock({kind}, {})", self.now().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told_and_with_its_clones() {
        let clock = Clock::manual(Timestamp::from_millis(1_000));
        let other = clock.clone();
        other.advance(Duration::from_millis(5));
        assert_eq!(clock.now().as_millis(), 1_005);
        assert_eq!(clock.now().distance(Timestamp::from_millis(1_010)), Duration::from_millis(5));
    }

    #[test]
    fn the_system_clock_is_in_this_century() {
        assert!(Clock::system().now() > Timestamp::from_millis(1_700_000_000_000));
    }
}
