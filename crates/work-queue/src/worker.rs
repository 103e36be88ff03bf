//! Doing the work.

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

use crate::{Claim, Finished, Item, Outcome, Queue};

/// Between attempts to write down what was done.
const WRITE_AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// How long to rest while nothing can be done.
const REST: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// How many pushes are taken together.
const BATCHES: usize = 500;
/// How long what was done at home may wait to be written down: together with others, and not beside what comes of it.
const WRITTEN_WITHIN: Duration = Duration::from_millis(20);

/// Does items. Any number of processes do so at once.
pub trait Handler: Send + Sync + 'static {
    /// Does items of different keys (in a queue without order: whatever is claimed) and says what became of each, in their order. An item may have been done before: by a worker
    /// that could not write it down.
    fn handle(&self, items: &[Item]) -> impl Future<Output = Vec<Outcome>> + Send;
}

/// Claims items and has them done.
#[derive(Debug)]
pub struct Worker<H> {
    queue: Queue,
    handler: H,
    holder: ProcessId,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub claimed: usize,
    pub finished: Finished,
    /// Whether there may be more to do at once.
    pub more: bool,
    /// How many items wait for somebody who is at work on the one before them.
    pub behind: usize,
}

impl Report {
    /// Whether nothing could be done, through no fault of the items: what they need is away, or others are at work on their keys.
    const fn is_fruitless(&self) -> bool {
        self.is_away() || self.claimed == 0 && self.behind > 0
    }

    const fn is_away(&self) -> bool {
        self.claimed > 0 && self.finished.not_tried == self.claimed
    }
}

impl<H: Handler> Worker<H> {
    pub fn new(queue: impl Into<Queue>, handler: H, holder: ProcessId) -> Self {
        Self { queue: queue.into(), handler, holder }
    }

    /// Claims a batch, has it done, and writes down what came of it.
    pub async fn tick(&self) -> Result<Report, LoopError> {
        Ok(self.work_on(self.queue.config.batch).await?)
    }

    async fn work_on(&self, max: u32) -> Result<Report, Error> {
        let Claim { items, until, more, behind } = self.queue.claim_some(self.holder, max).await?;
        if items.is_empty() {
            return Ok(Report { more, behind, ..Report::default() });
        }
        fault::point(&format!("{}.claimed", self.queue.table));
        if more {
            // There is enough for another worker.
            self.queue.wake();
        }
        let claimed = items.len();
        let (outcomes, until) = self.handle(items, until).await;
        fault::point(&format!("{}.handled", self.queue.table));
        let finished = self.write_down(&outcomes, until).await?;
        Ok(Report { claimed, finished, more, behind })
    }

    /// Works until told to stop, on several batches at once.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        // When one cannot go on the others stop, too, but not before they have written down what they did.
        let stop = drain.child();
        let work = async |at: u32| {
            let ended = self.run_one(stop.clone(), at == 0).await;
            stop.request();
            ended
        };
        let claiming = futures::future::join_all((0..self.queue.config.workers).map(work));
        // On the heap: several workers share a task, and their states side by side would not fit on its stack in a debug build.
        let (ended, ()) = futures::join!(claiming, Box::pin(self.run_at_home(stop.clone())));
        ended.into_iter().collect()
    }

    /// Does what is pushed in this process as next in line, until told to stop, and then what is on its way.
    async fn run_at_home(&self, drain: Drain) {
        let mut at_home = self.queue.home.enter(self.holder);
        let (mut batches, mut done) = (Vec::new(), Vec::new());
        let mut write_at = Instant::now();
        loop {
            let received = tokio::select! {
                received = at_home.items.recv_many(&mut batches, BATCHES) => received,
                () = sleep_until(write_at), if !done.is_empty() => {
                    self.write_down_at_home(&mut done).await;
                    continue;
                }
                () = drain.requested() => {
                    at_home.leave();
                    at_home.items.close();
                    at_home.items.recv_many(&mut batches, BATCHES).await
                }
            };
            if received == 0 {
                return self.write_down_at_home(&mut done).await;
            }
            // The others have waited here for longer than their lease: another worker has claimed them, or will. To do them here too
            // would double the load just when a store is back after an outage.
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
                write_at = Instant::now() + WRITTEN_WITHIN;
            }
            done.extend(outcomes);
            if done.len() >= BATCHES {
                self.write_down_at_home(&mut done).await;
            }
        }
    }

    /// It may be done again if that fails, when the lease has ended.
    async fn write_down_at_home(&self, done: &mut Vec<(Item, Outcome)>) {
        // The lease began with the commit, a moment ago.
        let until = Instant::now() + self.queue.config.lease / 2;
        let outcomes = std::mem::take(done);
        if let Err(error) = self.write_down(&outcomes, until).await {
            let cause = chain(&error);
            tracing::warn!(
                outage = self.queue.table,
                queue = self.queue.table,
                cause,
                "done, and not written down: it is done again"
            );
        }
    }

    async fn run_one(&self, drain: Drain, polls: bool) -> Result<(), LoopError> {
        let (mut fruitless, mut is_away) = (0, false);
        while !drain.is_requested() {
            // While nothing can be done it is enough to try with one.
            let report = match self.work_on(if is_away { 1 } else { self.queue.config.batch }).await {
                Ok(report) => report,
                // The others may be at work on what they have claimed: they are left alone.
                Err(error) if error.is_passing() => {
                    tracing::warn!(
                        outage = self.queue.table,
                        queue = self.queue.table,
                        cause = chain(&error),
                        "cannot work"
                    );
                    fruitless += 1;
                    drain.sleep(REST.after(fruitless)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            is_away = report.is_away() || is_away && report.claimed == 0;
            fruitless = if report.is_fruitless() { fruitless + 1 } else { 0 };
            if fruitless > 0 {
                drain.sleep(REST.after(fruitless)).await;
            } else if !report.more {
                self.wait_for_work(&drain, polls).await;
            }
        }
        Ok(())
    }

    /// Waits until something was pushed here, something is due, or it is time to stop.
    async fn wait_for_work(&self, drain: &Drain, polls: bool) {
        loop {
            tokio::select! {
                () = self.queue.pushed.notified() => return,
                () = drain.requested() => return,
                () = sleep(self.queue.config.poll), if polls => {
                    // A store that cannot be asked is found out by the claim.
                    if self.queue.has_due().await.unwrap_or(true) {
                        return;
                    }
                }
            }
        }
    }

    /// Has the items done, where there is an order those of one key one after the other, and keeps the lease meanwhile.
    async fn handle(&self, items: Vec<Item>, mut until: Instant) -> (Vec<(Item, Outcome)>, Instant) {
        let all = items.clone();
        let outcomes = tokio::select! {
            outcomes = self.handle_in_order(items) => outcomes,
            never = self.keep_lease(&all, &mut until) => match never {},
        };
        (outcomes, until)
    }

    /// Beside the work, never in its way: to renew a lease may have to wait for what the handler itself holds in the store.
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
                        "a lease was not renewed"
                    );
                }
            }
        }
    }

    /// In rounds, with the next item of every key in each. Behind an item that was not done, its key stops. Without order all are in
    /// the first round.
    async fn handle_in_order(&self, items: Vec<Item>) -> Vec<(Item, Outcome)> {
        let mut outcomes = Vec::with_capacity(items.len());
        let mut stopped: HashSet<i64> = HashSet::new();
        let mut left = items;
        while !left.is_empty() {
            let mut keys = HashSet::new();
            let mut is_next = |item: &Item| !self.queue.is_ordered || keys.insert(item.key_hash);
            let (round, later) = left.into_iter().partition(&mut is_next);
            left = later;
            let (round, behind): (Vec<Item>, Vec<Item>) =
                Vec::into_iter(round).partition(|item| !stopped.contains(&item.key_hash));
            let behind = behind.into_iter();
            outcomes.extend(
                behind.map(|item| (item, Outcome::NotTried("behind one that was not done".to_owned()))),
            );
            if round.is_empty() {
                continue;
            }
            let mut results = self.handler.handle(&round).await.into_iter();
            for item in round {
                let missing = || Outcome::Again("the handler did not say what came of it".to_owned());
                let outcome = results.next().unwrap_or_else(missing);
                if outcome != Outcome::Done {
                    stopped.insert(item.key_hash);
                }
                outcomes.push((item, outcome));
            }
        }
        outcomes
    }

    /// Tries until it is written down, or the lease has ended: then somebody else does the items again.
    async fn write_down(&self, outcomes: &[(Item, Outcome)], until: Instant) -> Result<Finished, Error> {
        let mut failures = 0;
        loop {
            let error = match self.queue.finish(outcomes).await {
                Ok(finished) => {
                    if finished.stale > 0 {
                        tracing::warn!(
                            queue = self.queue.table,
                            stale = finished.stale,
                            "came too late: the leases of these items had ended"
                        );
                    }
                    return Ok(finished);
                }
                Err(error) => error,
            };
            failures += 1;
            let wait = WRITE_AGAIN.after(failures);
            if !error.is_passing() || Instant::now() + wait >= until {
                return Err(error);
            }
            tracing::warn!(
                outage = self.queue.table,
                queue = self.queue.table,
                cause = chain(&error),
                "trying again to write down what was done"
            );
            sleep(wait).await;
        }
    }
}
