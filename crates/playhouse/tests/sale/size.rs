//! How big the sale is: small for CI, full for `cargo xtask soak drops`.

use std::env;
use std::time::Duration;

/// Players and units of a sale.
pub(crate) struct Size {
    pub(crate) players: usize,
    pub(crate) units: usize,
}

impl Size {
    /// Reads the size from the environment.
    pub(crate) fn asked() -> Self {
        let asked = |name: &str, default| match env::var(name) {
            Ok(number) => number.parse().unwrap_or_else(|_| panic!("{name}={number} is not a number")),
            Err(_) => default,
        };
        Self { players: asked("SALE_PLAYERS", 400), units: asked("SALE_UNITS", 40) }
    }

    /// How long a player waits at most before looking at the place again: a crowd that looks all the time would measure that.
    pub(crate) fn longest_pause(&self) -> Duration {
        Duration::from_secs((self.players / 600).clamp(5, 30) as u64)
    }

    /// How many players are admitted per second: the sale takes some cycles at any size, so that faults hit it in the middle.
    pub(crate) fn admitted_per_second(&self) -> usize {
        (self.units / 10).max(4)
    }
}
