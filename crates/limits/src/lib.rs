//! Rate limits, in process or shared through Redis.
//!
//! A limit is a token bucket per policy and key, implemented by GCRA: a burst at once, then a steady rate. The caller chooses the
//! policies and keys of a request.
//!
//! # Invariants
//! - All checks of a [`take`](Limits::take) are one decision: it takes from all buckets or from none.
//! - [`begin`](Limits::begin) takes from one bucket in process without I/O: refusing a request costs one lookup in memory.
//! - The configured rate is never exceeded: any time span `T` allows at most the burst plus the refill of `T`.
//! - Memory is bounded for any number of keys: full buckets are removed, and beyond the capacity new keys share one bucket per policy.
//!   Counts by key exist only for the keys that are refused most.
//!
//! # Failure modes
//! Taking never fails and never waits longer than the timeout. While Redis is unreachable or slow, each process decides on its own,
//! with the same rates and from full buckets, and retries Redis every second. A fleet of ten processes then allows up to ten times
//! the rate, but never unlimited requests. A Redis that has lost its data also starts from full buckets.

mod breaker;
mod decision;
mod limits;
mod memory;
mod metrics;
mod rate;
mod refused_keys;
mod rule;
mod shared;
mod tally;

pub use decision::{LimitDecision, LimitState};
pub use limits::{Check, Limits, PendingTake};
pub use metrics::{Instruments, Metrics};
pub use rate::{InvalidRate, Rate};
pub use refused_keys::RefusedKey;
pub use rule::{KeyKind, Rule};
pub use shared::TRIALS;
pub use tally::{Counts, RuleCounts};
