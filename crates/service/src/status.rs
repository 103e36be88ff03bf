//! The status of a service: findings for operators, and the leases that processes hold.

use base::finding::Finding;
use base::id::Uuid;

/// The status of a service for `playhouse status`. It is read from the shared stores, so that every process reports the same.
#[derive(Clone, Debug, Default)]
pub struct ServiceStatus {
    pub findings: Vec<Finding>,
    pub leases: Vec<Lease>,
}

/// Items that a process has claimed and not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The id of the process.
    pub holder: Uuid,
    pub queue: &'static str,
    pub items: u64,
}

/// Why a service cannot report its status.
pub type StatusError = Box<dyn std::error::Error + Send + Sync>;
