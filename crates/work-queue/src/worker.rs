//! Workers: claim, handle, record.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use base::Backoff;
use base::error::{Coded, chain};
use base::id::ProcessId;
use db::Error;
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use tokio::time::{Instant, MissedTickBehavior, sleep, sleep_until};

use crate::{Claim, Item, ItemOutcome, OutcomeCounts, WorkQueue};

/// The backoff between attempts to record outcomes.
const RECORD_RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// The backoff while no progress is possible.
const IDLE: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// How many local pushes are handled together at most.
const MAX_PUSHES: usize = 500;
/// How long the outcome of a locally pushed item may wait before it is recorded, so that outcomes are batched.
const RECORD_WITHIN: Duration = Duration::from_millis(20);

/// Handles items. Any number of processes do so concurrently.
pub trait Handler: Send + Sync + 'static {
    /// Handles items and returns their outcomes, in the same order. In an ordered queue the items have different keys. An item may
    /// have been handled before by a worker that could not record the outcome.
    fn handle(&self, items: &[Item]) -> impl Future<Output = Vec<ItemOutcome>> + Send;
}

/// Claims items, passes them to its handler and records the outcomes.
#[derive(Debug)]
pub struct Worker<H> {
    queue: WorkQueue,
    handler: H,
    holder: ProcessId,
}

/// The result of one [`Worker::tick`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub claimed: usize,
    pub finished: OutcomeCounts,
    /// Whether more items may be due.
    pub has_more: bool,
    /// How many due items wait for a predecessor that another worker is handling.
    pub waiting: usize,
}

impl Report {
    /// Returns whether no progress was possible, through no fault of the items: a dependency is unreachable, or other workers hold
    /// their keys.
    const fn is_fruitless(&self) -> bool {
        self.is_outage() || self.claimed == 0 && self.waiting > 0
    }

    const fn is_outage(&self) -> bool {
        self.claimed > 0 && self.finished.not_attempted == self.claimed
    }
}

impl<H: Handler> Worker<H> {
    pub fn new(queue: impl Into<WorkQueue>, handler: H, holder: ProcessId) -> Self {
        Self { queue: queue.into(), handler, holder }
    }

    /// Claims a batch, handles it and records the outcomes.
    pub async fn tick(&self) -> Result<Report, LoopError> {
        Ok(self.work_on(self.queue.config.batch).await?)
    }

    async fn work_on(&self, max: u32) -> Result<Report, Error> {
        let Claim { items, until, has_more, waiting } = self.queue.claim_some(self.holder, max).await?;
        if items.is_empty() {
            return Ok(Report { has_more, waiting, ..Report::default() });
        }
        fault::point(&format!("{}.claimed", self.queue.table));
        if has_more {
            // There are enough items for another worker.
            self.queue.wake();
        }
        let claimed = items.len();
        let (outcomes, until) = self.handle(items, until).await;
        fault::point(&format!("{}.handled", self.queue.table));
        let finished = self.record(&outcomes, until).await?;
        Ok(Report { claimed, finished, has_more, waiting })
    }

    /// Handles several batches concurrently until the drain is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        // If one loop fails the others stop too, but only after they have recorded their outcomes.
        let stop = drain.child();
        let work = async |at: u32| {
            let ended = self.run_one(stop.clone(), at == 0).await;
            stop.request();
            ended
        };
        let claiming = futures::future::join_all((0..self.queue.config.workers).map(work));
        // Boxed: several workers share a task, and their combined futures overflow its stack in a debug build.
        let (ended, ()) = futures::join!(claiming, Box::pin(self.run_local(stop.clone())));
        ended.into_iter().collect()
    }

    /// Handles items that this process pushed for itself. After the drain is requested it handles those already sent, then returns.
    async fn run_local(&self, drain: Drain) {
        let mut local = self.queue.local.register(self.holder);
        let (mut batches, mut done) = (Vec::new(), Vec::new());
        let mut write_at = Instant::now();
        loop {
            let received = tokio::select! {
                received = local.items.recv_many(&mut batches, MAX_PUSHES) => received,
                () = sleep_until(write_at), if !done.is_empty() => {
                    self.record_local(&mut done).await;
                    continue;
                }
                () = drain.requested() => {
                    local.unregister();
                    local.items.close();
                    local.items.recv_many(&mut batches, MAX_PUSHES).await
                }
            };
            if received == 0 {
                return self.record_local(&mut done).await;
            }
            // Drop items that have waited here for longer than their lease: another worker has claimed them, or will. Handling
            // them twice would double the load exactly when a store has recovered from an outage.
            let lease = self.queue.config.lease;
            let is_ours = |item: &Item| item.claimed.elapsed() < lease;
            let items: Vec<Item> = batches.drain(..).flatten().filter(is_ours).collect();
            if items.is_empty() {
                continue;
            }
            fault::point(&format!("{}.claimed", self.queue.table));
            let outcomes = self.handle_in_order(items).await;
            fault::point(&format!("{}.handled", self.queue.table));
            if done.is_empty() {
                write_at = Instant::now() + RECORD_WITHIN;
            }
            done.extend(outcomes);
            if done.len() >= MAX_PUSHES {
                self.record_local(&mut done).await;
            }
        }
    }

    /// Records the outcomes of locally pushed items. If that fails, the items are handled again after their lease expires.
    async fn record_local(&self, done: &mut Vec<(Item, ItemOutcome)>) {
        // The lease began with the commit, moments ago.
        let until = Instant::now() + self.queue.config.lease / 2;
        let outcomes = std::mem::take(done);
        if let Err(error) = self.record(&outcomes, until).await {
            let cause = chain(&error);
            tracing::warn!(
                outage = self.queue.table,
                queue = self.queue.table,
                cause,
                "cannot record finished items: they will be handled again"
            );
        }
    }

    async fn run_one(&self, drain: Drain, polls: bool) -> Result<(), LoopError> {
        let (mut fruitless, mut is_outage) = (0, false);
        while !drain.is_requested() {
            // During an outage one item is enough to probe.
            let report = match self.work_on(if is_outage { 1 } else { self.queue.config.batch }).await {
                Ok(report) => report,
                // The other loops may still be handling their claims: let them continue.
                Err(error) if error.is_transient() => {
                    tracing::warn!(
                        outage = self.queue.table,
                        queue = self.queue.table,
                        cause = chain(&error),
                        "cannot claim items: retrying"
                    );
                    fruitless += 1;
                    drain.sleep(IDLE.after(fruitless)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            is_outage = report.is_outage() || is_outage && report.claimed == 0;
            fruitless = if report.is_fruitless() { fruitless + 1 } else { 0 };
            if fruitless > 0 {
                drain.sleep(IDLE.after(fruitless)).await;
            } else if !report.has_more {
                self.wait_for_work(&drain, polls).await;
            }
        }
        Ok(())
    }

    /// Waits until this process has pushed an item, an item is due, or the drain is requested.
    async fn wait_for_work(&self, drain: &Drain, polls: bool) {
        loop {
            tokio::select! {
                () = self.queue.pushed.notified() => return,
                () = drain.requested() => return,
                () = sleep(self.queue.config.poll), if polls => {
                    // If the query fails, let the claim report the error.
                    if self.queue.has_due().await.unwrap_or(true) {
                        return;
                    }
                }
            }
        }
    }

    /// Handles the items and keeps their leases meanwhile.
    async fn handle(&self, items: Vec<Item>, mut until: Instant) -> (Vec<(Item, ItemOutcome)>, Instant) {
        let all = items.clone();
        let outcomes = tokio::select! {
            outcomes = self.handle_in_order(items) => outcomes,
            never = self.keep_lease(&all, &mut until) => match never {},
        };
        (outcomes, until)
    }

    /// Renews the leases of the items until it is dropped. Runs concurrently with the handler, because a renewal can wait for a lock that
    /// the handler itself holds in the store.
    async fn keep_lease(&self, items: &[Item], until: &mut Instant) -> Infallible {
        let mut heartbeat = tokio::time::interval(self.queue.config.lease / 3);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        loop {
            heartbeat.tick().await;
            match self.queue.renew(items).await {
                Ok((_, renewed)) => *until = renewed,
                Err(error) => {
                    tracing::warn!(
                        outage = self.queue.table,
                        queue = self.queue.table,
                        cause = chain(&error),
                        "cannot renew the lease of claimed items"
                    );
                }
            }
        }
    }

    /// Handles the items in rounds, each with the next item of every key. A key stops at its first item that is not done. An unordered
    /// queue needs only one round.
    async fn handle_in_order(&self, items: Vec<Item>) -> Vec<(Item, ItemOutcome)> {
        let mut outcomes = Vec::with_capacity(items.len());
        let mut stopped: HashSet<i64> = HashSet::new();
        let mut left = items;
        while !left.is_empty() {
            let mut keys = HashSet::new();
            let mut is_next = |item: &Item| !self.queue.is_ordered || keys.insert(item.key_hash);
            let (round, rest) = left.into_iter().partition(&mut is_next);
            left = rest;
            let (round, blocked): (Vec<Item>, Vec<Item>) =
                Vec::into_iter(round).partition(|item| !stopped.contains(&item.key_hash));
            let blocked = blocked.into_iter();
            outcomes.extend(blocked.map(|item| {
                (item, ItemOutcome::NotAttempted("an earlier item of the same key was not done".to_owned()))
            }));
            if round.is_empty() {
                continue;
            }
            let mut results = self.handler.handle(&round).await.into_iter();
            for item in round {
                let missing = || ItemOutcome::Retry("the handler returned no outcome".to_owned());
                let outcome = results.next().unwrap_or_else(missing);
                if outcome != ItemOutcome::Done {
                    stopped.insert(item.key_hash);
                }
                outcomes.push((item, outcome));
            }
        }
        outcomes
    }

    /// Records the outcomes, and retries until the lease expires. After that another worker handles the items again.
    async fn record(&self, outcomes: &[(Item, ItemOutcome)], until: Instant) -> Result<OutcomeCounts, Error> {
        let mut failures = 0;
        loop {
            let error = match self.queue.finish(outcomes).await {
                Ok(finished) => {
                    if finished.stale > 0 {
                        tracing::warn!(
                            queue = self.queue.table,
                            stale = finished.stale,
                            "ignored outcomes of items whose lease had expired"
                        );
                    }
                    return Ok(finished);
                }
                Err(error) => error,
            };
            failures += 1;
            let wait = RECORD_RETRY.after(failures);
            if !error.is_transient() || Instant::now() + wait >= until {
                return Err(error);
            }
            tracing::warn!(
                outage = self.queue.table,
                queue = self.queue.table,
                cause = chain(&error),
                "cannot record finished items: retrying"
            );
            sleep(wait).await;
        }
    }
}
