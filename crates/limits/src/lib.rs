//! Rate limits, in process or shared through Redis.
//!
//! A limit is a bucket per policy and key, decided by GCRA: a burst at once, then a steady rate. It knows nothing of requests:
//! who is limited by what is for the caller to say.
//!
//! # Invariants
//! - All checks of a [`take`](Limits::take) are one decision: taken from all buckets, or from none.
//! - [`begin`](Limits::begin) takes from one bucket in process and does no I/O: a refused request costs a look at a table in memory.
//! - More is never let through than was written: in any time `T`, at most the burst and what `T` refills.
//! - Memory is bounded, whoever calls: a bucket that is full again is forgotten, and when there are too many, those that
//!   are new share one per policy.
//!
//! # Failure modes
//! Taking never fails and never waits for longer than the timeout. When Redis is away or slow, the process decides alone,
//! by the same rates from full buckets, and asks Redis again a second later: a fleet of ten then lets through up to ten
//! times as much, but the door is never open. A Redis that comes back empty starts from full buckets as well.

mod breaker;
mod limits;
mod memory;
mod metrics;
mod rate;
mod shared;
mod verdict;

pub use limits::{Begun, Check, Limits};
pub use metrics::{Instruments, Metrics};
pub use rate::{InvalidRate, Rate};
pub use shared::TRIALS;
pub use verdict::{State, Verdict};
