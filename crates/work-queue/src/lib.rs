//! A leased work queue in SQL. Any number of workers handle its items at least once, in order per key unless the queue is unordered.
//!
//! An item is [pushed](WorkQueue::push) in the transaction that makes it necessary, so it exists if and only if that transaction
//! commits. A [`Worker`] claims a batch of items for a limited time (the lease), passes them to its [`Handler`] and records the
//! outcome of each. A process can also claim an item [as it pushes it](Unordered::push_claimed), and handle it right after the commit.
//!
//! # Guarantees
//! - **Nothing is lost.** The lease of a dead worker expires, and another worker claims the item.
//! - **A late worker changes nothing.** Every claim and every operator decision raises the item's lease number. A worker records an
//!   outcome with the number of its own claim. An outcome with an old number is counted as stale and not written.
//! - **Order per key.** An item is claimed only when its predecessor of the same key is finished, or is claimed with it and handled
//!   first. An item that failed for good blocks its key, and no other key, until an operator retries or skips it. A queue can
//!   opt out of order with [`unordered`](WorkQueue::unordered).
//! - **Long work resumes where it stopped.** The handler [saves](WorkQueue::save) its progress in the transaction that made the progress.
//! - **A failure and its consequences commit together.** A [failure hook](WorkQueue::with_failure_hook) adds writes to the
//!   transaction that marks an item as failed, whichever process runs it.
//! - **The store's clock** decides about leases and waits. The clocks of the workers do not matter.
//! - **Finished items cost nothing.** Claims read only the open end of an index, however many finished items there are. Finished
//!   items are removed after their retention, a few at a time.
//!
//! In an ordered queue, pushes of the same key must exclude each other until they commit, for example by a lock on the entity behind
//! the key. The order of a key is that of its items' numbers, and numbers are assigned before the commit.
//!
//! # How an item is stored
//! `state` is open, done, failed, skipped or held; `holder` is the process that has claimed the item. `due_at` is one column with one
//! index for everything that depends on time. For an open item it is when the item may be claimed. For a claimed item it is when the
//! lease ends, so an expired lease needs no separate sweep. For the other states it is when the item entered the state.

mod browse;
mod bulk;
mod claim;
mod config;
mod decide;
mod erase;
mod failed;
mod finish;
mod hold;
mod item;
mod local;
mod metrics;
mod operator;
mod overview;
mod queue;
mod retention;
mod statement;
mod table;
mod unordered;
mod worker;

pub use browse::{CauseGroup, OpenKey, PageKey};
pub use bulk::{Decision, FailedFilter};
pub use claim::Claim;
pub use config::Config;
pub use decide::DecisionError;
pub use failed::{FailedItem, FailureHook};
pub use finish::OutcomeCounts;
pub use item::{Item, ItemOutcome, NewItem, SplitItem, State};
pub use metrics::Metrics;
pub use operator::{BlockedKey, Filter, ItemView, KeyBackoff};
pub use overview::{Overview, RetryingKey};
pub use queue::WorkQueue;
pub use retention::RetentionCleaner;
pub use unordered::Unordered;
pub use worker::{Handler, Report, Worker};
