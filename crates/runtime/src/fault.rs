//! Panic messages, and fault points at which a test can kill the process.
//!
//! `TESTKIT_FAULT=outbox.claimed` kills the process, as `kill -9` does, the first time it reaches the point `outbox.claimed`;
//! `outbox.claimed@7` the seventh time. Release builds have no fault points: they need debug assertions.

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

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::sys::signal::{Signal, raise};

    struct Fault {
        name: String,
        /// How often the point is passed before the process is killed.
        left: AtomicU32,
    }

    static FAULT: LazyLock<Option<Fault>> = LazyLock::new(|| {
        let text = std::env::var("TESTKIT_FAULT").ok()?;
        let (name, time) = text.split_once('@').unwrap_or((&text, "1"));
        let time = time.parse::<u32>().ok()?;
        Some(Fault { name: name.to_owned(), left: AtomicU32::new(time.saturating_sub(1)) })
    });

    pub(super) fn point(name: &str) {
        let Some(fault) = FAULT.as_ref().filter(|fault| fault.name == name) else { return };
        let passed = |left: u32| left.checked_sub(1);
        if fault.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, passed).is_err() {
            // Does not return.
            let _ = raise(Signal::SIGKILL);
        }
    }
}
