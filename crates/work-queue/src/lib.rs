//! Leased work: a queue in SQL whose items are done at least once, in order per key or without any, by any number of workers.
//!
//! An item is [pushed](Queue::push) in the transaction that makes it necessary, so it exists just when that was committed. A
//! [`Worker`] claims a batch for a while (the lease), hands it to its [`Handler`] and writes down what became of each item. Whoever
//! pushes may also [have claimed](Unordered::push_claimed) an item with that, and do it as soon as it is committed.
//!
//! # Promises
//! - **Nothing is lost.** A worker that dies leaves a lease that ends, and somebody else claims the item.
//! - **A worker that comes too late changes nothing.** Every claim and every step of an operator raises the item's lease number, and
//!   whoever writes down an outcome names the number that they had. What no longer fits is counted, not written.
//! - **Order per key.** An item is claimed only when the one before it of the same key is finished, or claimed with it and done
//!   first. One that failed for good holds up its key, and no other, until an operator tries it again or skips it. A queue may do [without](Queue::unordered).
//! - **Work that takes long goes on where it was.** Its handler [saves](Queue::save) how far it got in the transaction that got it there.
//! - **What a failure entails comes with it.** A queue can be [told](Queue::on_failed) what to write when an item fails for good; it is
//!   written in the transaction that marks the item, whoever does that, and never without it.
//! - **The store's clock** decides on leases and waits, whatever the clocks of the workers say.
//! - **What is finished costs nothing.** Claims read the open end of an index, however many finished items there are; those are
//!   removed after a while, a few at a time.
//!
//! Where there is an order, pushes that share a key must exclude each other until they are committed (a lock on what the key stands for): the order of
//! a key is that of its items' numbers, and numbers are given before the commit.
//!
//! # How an item is stored
//! `state` says whether it is open, done, failed or skipped; `holder` who has claimed it. `due_at` is one column with one index for
//! all that depends on time: when an open item may be claimed (one that is claimed: when its lease ends, so that a lease that
//! has ended needs nobody to notice), and since when one is done, failed or skipped.

mod choose;
mod claim;
mod config;
mod decide;
mod erase;
mod failed;
mod finish;
mod hold;
mod home;
mod item;
mod keep;
mod metrics;
mod operator;
mod overview;
mod queue;
mod statement;
mod table;
mod unordered;
mod worker;

pub use choose::{Choice, Decision};
pub use claim::Claim;
pub use config::Config;
pub use decide::Unfit;
pub use failed::{FailedItem, OnFailed};
pub use finish::Finished;
pub use item::{Item, New, Outcome, Part, State};
pub use keep::Keeper;
pub use metrics::Metrics;
pub use operator::{BlockedKey, Entry, Filter, Resting};
pub use overview::{Overview, TroubledKey};
pub use queue::Queue;
pub use unordered::Unordered;
pub use worker::{Handler, Report, Worker};
