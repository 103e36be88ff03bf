//! Recognises an engine of another program on the same Redis: minimatch's backend.
//!
//! It takes a lock that processes with `coordination = "script"` do not need among themselves. A step that it could
//! interfere with is refused while the lock is held (`refuse_beside_lock.lua`), and repeated under the lock. From then on every
//! step takes the lock, for as long as the other engine is seen. It is also recognised by the tickets that it holds: the
//! scores of its claims have no fraction.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::Metrics;

/// How long after it was last seen the engine counts as running. Afterwards a step without the lock is still refused
/// while the other program holds it; only the first attempt is lost.
const MEMORY: Duration = Duration::from_secs(600);

/// A program with an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignProgram {
    Minimatch,
    OpenMatch,
}

impl ForeignProgram {
    /// Reads a number of `program_of` in `claims.lua`.
    pub(super) const fn from_script(number: u8) -> Option<Self> {
        match number {
            0 => None,
            1 => Some(Self::Minimatch),
            _ => Some(Self::OpenMatch),
        }
    }
}

/// Whether an engine of another program works on these tickets. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct ForeignEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Whether the configuration expects it, so that no warning is needed.
    is_expected: bool,
    last_seen: Mutex<Option<Instant>>,
    metrics: Metrics,
}

impl ForeignEngine {
    pub(super) fn new(is_expected: bool, metrics: Metrics) -> Self {
        Self(Arc::new(Inner { is_expected, last_seen: Mutex::default(), metrics }))
    }

    /// Records that its lock was seen.
    pub(super) fn seen(&self) {
        self.0.metrics.foreign_locks.inc();
        self.is_seen(ForeignProgram::Minimatch);
    }

    /// Records which program holds tickets, if one does.
    pub(super) fn holds_tickets(&self, program: Option<ForeignProgram>) {
        program.into_iter().for_each(|program| self.is_seen(program));
    }

    fn is_seen(&self, program: ForeignProgram) {
        let is_new = !self.is_present();
        *self.0.last_seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.0.metrics.foreign_engine.set(1);
        if !is_new {
            return;
        }
        match program {
            ForeignProgram::OpenMatch => tracing::error!(
                "Open Match works on the same keys in Redis. Its claims never expire for Playhouse, and both make matches \
                 of the same tickets. Give Playhouse a Redis or a matchmaking.key_prefix of its own"
            ),
            ForeignProgram::Minimatch if self.0.is_expected => {}
            ForeignProgram::Minimatch => tracing::warn!(
                "A minimatch backend works on the same tickets, so every step now takes its lock. Set \
                 matchmaking.coordination = \"lock\" while it runs, or stop it"
            ),
        }
    }

    /// Returns whether it was seen lately.
    pub(super) fn is_present(&self) -> bool {
        let last_seen = *self.0.last_seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_present = last_seen.is_some_and(|at| at.elapsed() < MEMORY);
        if !is_present && last_seen.is_some() {
            self.0.metrics.foreign_engine.set(0);
        }
        is_present
    }
}
