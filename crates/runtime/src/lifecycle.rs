//! Starts parts in order, reports readiness, restarts loops that fail, and stops in reverse order.

mod process;
mod readiness;
mod signals;
mod supervise;

use std::time::Duration;

use config::{Reader, Section};
use tokio_util::sync::CancellationToken;

pub use process::{Exit, Forced, Process, Stage};
pub use readiness::{Impact, Part, PartNeed, PartState, Readiness, Report, RoleNeeds, RoleReport};
pub use signals::Signals;
pub use supervise::LoopError;

/// Settings of the lifecycle.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long each store may take to become reachable at start.
    pub start_timeout: Duration,
    /// How long to keep serving after `/readyz` reports not ready, so that load balancers notice.
    pub drain_delay: Duration,
    /// How long stopping may take in total, including the delay.
    pub grace: Duration,
    pub restart: base::Backoff,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let config = Self {
            start_timeout: reader.get("start_timeout"),
            drain_delay: reader.get("drain_delay"),
            grace: reader.get("grace"),
            restart: base::Backoff::new(reader.get("restart_backoff_min"), reader.get("restart_backoff_max")),
        };
        reader.check(&["drain_delay", "grace"], config.drain_delay < config.grace, || {
            "drain_delay must be shorter than grace, or no time is left to finish requests".to_owned()
        });
        reader.check(
            &["restart_backoff_min", "restart_backoff_max"],
            !config.restart.min.is_zero() && config.restart.min <= config.restart.max,
            || "restart_backoff_min must be more than 0 and at most restart_backoff_max".to_owned(),
        );
        config
    }
}

/// The request to a part to finish. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Drain(CancellationToken);

impl Drain {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn request(&self) {
        self.0.cancel();
    }

    /// Returns a drain that is requested together with this one, or on its own.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the part should finish.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// Waits until `duration` after the part was requested to finish.
    pub async fn requested_since(&self, duration: Duration) {
        self.requested().await;
        tokio::time::sleep(duration).await;
    }

    /// Sleeps for `duration`, or until the part should finish. Returns whether to continue.
    pub async fn sleep(&self, duration: Duration) -> bool {
        tokio::time::timeout(duration, self.requested()).await.is_err()
    }
}

#[cfg(test)]
mod tests;
