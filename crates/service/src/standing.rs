//! How a service stands: what waits for an operator, and what processes hold.

use base::finding::Finding;
use base::id::Uuid;

/// What a service says of itself for `playhouse status`. It is read from the shared stores, so that every process says the same.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    pub findings: Vec<Finding>,
    pub leases: Vec<Lease>,
}

/// Items that a process has claimed and not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The process.
    pub holder: Uuid,
    pub queue: &'static str,
    pub items: u64,
}

/// Why a service cannot say how it stands.
pub type StandingError = Box<dyn std::error::Error + Send + Sync>;
