//! The size of the sale: small for CI, large for `cargo xtask soak drops`.

use std::env;
use std::time::Duration;

/// The numbers of players and units.
pub(crate) struct Size {
    pub(crate) players: usize,
    pub(crate) units: usize,
}

impl Size {
    /// Reads the size from the environment.
    pub(crate) fn from_env() -> Self {
        let number = |name: &str, default| match env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
            Err(_) => default,
        };
        Self { players: number("SALE_PLAYERS", 400), units: number("SALE_UNITS", 40) }
    }

    /// Returns the longest pause between two polls of a player. It grows with the number of players, so that polling does not become
    /// the measured load.
    pub(crate) fn max_poll_interval(&self) -> Duration {
        Duration::from_secs((self.players / 600).clamp(5, 30) as u64)
    }

    /// Returns how many players are admitted per second. A sale of any size takes several cycles, so that faults hit it in the middle.
    pub(crate) fn admitted_per_second(&self) -> usize {
        (self.units / 10).max(4)
    }
}
