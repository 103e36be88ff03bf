//! Panic messages, fault points at which a test can kill the process, and faults that a test can inject.
//!
//! `TESTKIT_FAULT=outbox.claimed` kills the process, as `kill -9` does, the first time it reaches the point `outbox.claimed`;
//! `outbox.claimed@7` the seventh time.
//!
//! `TESTKIT_PLANT=drops.oversell@7` breaks a promise once, the seventh time that the place is reached, to show that `playhouse simulate`
//! finds it. Release builds have neither: they need debug assertions.

use std::any::Any;

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// Kills the process if `TESTKIT_FAULT` names this point.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    armed::point(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Returns whether a promise is to be broken here, because `TESTKIT_PLANT` names it. True at most once per process.
#[inline]
#[must_use]
pub fn is_planted(name: &str) -> bool {
    #[cfg(debug_assertions)]
    let is_planted = armed::is_planted(name);
    #[cfg(not(debug_assertions))]
    let is_planted = {
        let _ = name;
        false
    };
    is_planted
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::sys::signal::{Signal, raise};

    struct Fault {
        name: String,
        /// How often the place is passed before the fault happens.
        left: AtomicU32,
    }

    static FAULT: LazyLock<Option<Fault>> = LazyLock::new(|| Fault::of("TESTKIT_FAULT"));
    static PLANT: LazyLock<Option<Fault>> = LazyLock::new(|| Fault::of("TESTKIT_PLANT"));

    impl Fault {
        /// Reads a fault from a variable: `NAME`, or `NAME@TIME`.
        fn of(variable: &str) -> Option<Self> {
            let text = std::env::var(variable).ok()?;
            let (name, time) = text.split_once('@').unwrap_or((&text, "1"));
            let time = time.parse::<u32>().ok()?;
            Some(Self { name: name.to_owned(), left: AtomicU32::new(time) })
        }

        /// Counts a pass. Returns how many were left before it.
        fn pass(&self) -> u32 {
            let next = |left: u32| Some(left.saturating_sub(1));
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default()
        }
    }

    pub(super) fn point(name: &str) {
        let Some(fault) = FAULT.as_ref().filter(|fault| fault.name == name) else { return };
        if fault.pass() <= 1 {
            // Does not return.
            let _ = raise(Signal::SIGKILL);
        }
    }

    pub(super) fn is_planted(name: &str) -> bool {
        PLANT.as_ref().is_some_and(|plant| plant.name == name && plant.pass() == 1)
    }
}
