//! The locks as callers see them.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use tokio::time::Instant;

use crate::hot::{HotRow, HotRows};
use crate::in_process::{self, InProcess};
use crate::metrics::{Hold, Metrics, Outcome, Waiter};
use crate::mysql::{self, MySql, Wait};
use crate::plan::Plan;
use crate::{EmptyId, Error, Target};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How locks are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long an acquisition may take, a year at the most. [`Locks::within`] asks for less.
    pub wait_timeout: Duration,
    /// Buckets per level, as the database has them.
    pub buckets: u32,
    /// How many locks of this process can be held or waited for at once: each has a connection.
    pub max_connections: u32,
    /// How often the server hears of a holder. After three times this in silence it takes the lock away. Servers count in
    /// seconds, so less than a third of one is taken for that; and more than a day for a day.
    pub heartbeat: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wait_timeout: Duration::from_secs(10),
            buckets: 10_000_000,
            max_connections: 32,
            heartbeat: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// With times that servers take, and that can be added to others.
    fn bounded(&self) -> Self {
        Self {
            wait_timeout: self.wait_timeout.min(DAY * 365),
            heartbeat: self.heartbeat.clamp(Duration::from_millis(333), DAY),
            ..self.clone()
        }
    }
}

/// Takes locks, on the rows of a database or in this process. Clones share everything but their patience.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use base::Clock;
/// use hierlock::{Locks, Options, Target};
///
/// let locks = Locks::in_process(&Options::default(), &Clock::system());
/// let sword = locks.acquire(Target::resource("u1", "a1", "sword")?).await?;
/// let shield = locks.acquire(Target::resource("u1", "a1", "shield")?).await?; // does not wait
///
/// let in_a_hurry = locks.within(std::time::Duration::from_millis(20));
/// assert!(in_a_hurry.acquire(Target::account("u1", "a1")?).await.is_err()); // both are in its way
///
/// sword.release().await?;
/// drop(shield); // releases, too
/// locks.acquire(Target::account("u1", "a1")?).await?.release().await
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    store: Store,
    patience: Duration,
    metrics: Metrics,
    hot: Arc<HotRows>,
}

#[derive(Clone, Debug)]
enum Store {
    InProcess(InProcess),
    MySql(MySql),
}

impl Locks {
    /// Makes locks of this process, for programs that are one. The clock is read once: fencing tokens begin there, so that they
    /// exceed those of an earlier process.
    pub fn in_process(options: &Options, clock: &Clock) -> Self {
        Self::new(Store::InProcess(InProcess::new(clock.now())), &options.bounded())
    }

    /// Locks on the rows of a MySQL or MariaDB database, for any number of processes.
    ///
    /// Refuses a database that has other buckets than `options`, or none yet: see [`Provision`](crate::Provision).
    pub async fn mysql(database: MySqlConnectOptions, options: &Options) -> Result<Self, Error> {
        let options = options.bounded();
        Ok(Self::new(Store::MySql(MySql::open(database, &options).await?), &options))
    }

    fn new(store: Store, options: &Options) -> Self {
        Self { store, patience: options.wait_timeout, metrics: Metrics::default(), hot: Arc::default() }
    }

    /// The same locks for a caller with less time. More than [`Options::wait_timeout`] cannot be had.
    pub fn within(&self, patience: Duration) -> Self {
        Self { patience: self.patience.min(patience), ..self.clone() }
    }

    /// How long an acquisition may take.
    pub const fn patience(&self) -> Duration {
        self.patience
    }

    /// Locks one target: its ancestors are shared with others, itself is exclusive. Waits while somebody is in the way.
    ///
    /// Dropping the future gives up the wait, also on the server.
    pub async fn acquire(&self, target: Target<'_>) -> Result<Lock, Error> {
        self.acquire_all([target]).await
    }

    /// Locks several resources of one account.
    pub async fn acquire_resources(
        &self,
        user: &str,
        account: &str,
        resources: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<Lock, Error> {
        let resources: Vec<_> = resources.into_iter().collect();
        let targets = resources.iter().map(|resource| Target::resource(user, account, resource.as_ref()));
        self.acquire_all(targets.collect::<Result<Vec<_>, EmptyId>>()?).await
    }

    /// Locks any set of targets, as one. Whoever needs several takes them with one call: taken one after the other they
    /// could deadlock with somebody who took them the other way round.
    pub async fn acquire_all<'a>(
        &self,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<Lock, Error> {
        let plan = self.plan(targets)?;
        let measured = self.measure(&plan);
        let deadline = measured.began + self.patience;
        let held = match &self.store {
            Store::InProcess(store) => {
                let held = store.acquire(&plan, deadline).await;
                held.map(Held::InProcess).map_err(|in_process::TooLate| Error::Timeout(self.patience))
            }
            Store::MySql(store) => store.acquire(&plan, deadline, self.patience).await.map(Held::MySql),
        };
        measured.ended(&held);
        Ok(Lock { held: held?, hold: self.metrics.hold() })
    }

    /// Locks the targets inside a transaction of the caller's, which ends them: what is written in it and its locks are
    /// one. On MySQL and MariaDB only; in process, take the lock and keep it until the transaction has ended.
    ///
    /// Take the locks before anything else in the transaction. After an error, roll it back: some rows may be locked. If
    /// the wait is given up, by its deadline or by dropping the future, the transaction's connection is gone.
    pub async fn lock_in<'a>(
        &self,
        transaction: &mut MySqlConnection,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<(), Error> {
        self.lock_in_open(transaction, None, targets).await
    }

    /// As [`lock_in`](Self::lock_in), for a caller who has begun the transaction and asked for the connection's number on the same
    /// way: that saves a round trip. Where no transaction is open, nothing stays locked.
    pub async fn lock_in_session<'a>(
        &self,
        transaction: &mut MySqlConnection,
        number: u64,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<(), Error> {
        self.lock_in_open(transaction, Some(number), targets).await
    }

    async fn lock_in_open<'a>(
        &self,
        transaction: &mut MySqlConnection,
        number: Option<u64>,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<(), Error> {
        let Store::MySql(store) = &self.store else { return Err(Error::NoTransaction) };
        let plan = self.plan(targets)?;
        let measured = self.measure(&plan);
        let deadline = measured.began + self.patience;
        let locked = store.lock_in(transaction, number, &plan, deadline, self.patience).await;
        measured.ended(&locked);
        locked
    }

    /// Whether they are locks of this process only.
    pub const fn is_in_process(&self) -> bool {
        matches!(self.store, Store::InProcess(_))
    }

    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The rows that this process has waited for the longest, the worst first.
    pub fn hot(&self, limit: usize) -> Vec<HotRow> {
        self.hot.worst(limit)
    }

    /// Who waits for whom at this moment, as the server sees it. None in process, which has no server to ask.
    ///
    /// The user needs the privilege PROCESS. MariaDB takes a tenth of a second to answer, and answers with what was before if
    /// others keep asking, too.
    pub async fn waits(&self) -> Result<Option<Vec<Wait>>, Error> {
        match &self.store {
            Store::InProcess(_) => Ok(None),
            Store::MySql(store) => store.waits().await.map(Some),
        }
    }

    /// Whether nothing is held or waited for, and no connection is in use.
    pub fn is_idle(&self) -> bool {
        match &self.store {
            Store::InProcess(store) => store.busy_rows() == 0,
            Store::MySql(store) => store.is_idle(),
        }
    }

    /// Closes the connections that nobody uses. Those that hold a lock close when it is released.
    pub async fn close(&self) {
        if let Store::MySql(store) = &self.store {
            store.close().await;
        }
    }

    pub(crate) fn plan<'a>(&self, targets: impl IntoIterator<Item = Target<'a>>) -> Result<Plan, Error> {
        let buckets = match &self.store {
            Store::InProcess(_) => in_process::BUCKETS,
            Store::MySql(store) => store.buckets(),
        };
        Plan::new(targets, buckets).ok_or(Error::NoTarget)
    }

    fn measure<'a>(&'a self, plan: &'a Plan) -> Measured<'a> {
        let (outcome, began) = (Outcome::Abandoned, Instant::now());
        Measured { locks: self, plan, outcome, began, _waiter: self.metrics.waiter() }
    }
}

/// An acquisition under way; what it took is noted however it ends.
struct Measured<'a> {
    locks: &'a Locks,
    plan: &'a Plan,
    outcome: Outcome,
    began: Instant,
    _waiter: Waiter,
}

impl Measured<'_> {
    fn ended<T>(mut self, done: &Result<T, Error>) {
        self.outcome = Outcome::of(done);
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.locks.metrics.acquired(self.plan.level(), self.outcome, took);
        // Who waited for a connection has waited for no row.
        if self.outcome != Outcome::NoPlace {
            self.locks.hot.waited(self.plan, took);
        }
    }
}

/// Grows with every holder: a store that remembers the largest it has seen can refuse those who come too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

/// A lock that is held. Dropping it releases it, a moment later; [`release`](Self::release) says when it is done.
#[must_use = "a lock that is dropped is released"]
#[derive(Debug)]
pub struct Lock {
    held: Held,
    hold: Hold,
}

#[derive(Debug)]
enum Held {
    InProcess(in_process::Held),
    MySql(mysql::Held),
}

impl Lock {
    /// Whether the lock is held as far as is known here: the server answered recently enough, and nobody has told us of a
    /// loss. Costs nothing. A loss is noticed within a heartbeat; [`check`](Self::check) notices at once.
    pub fn is_valid(&self) -> bool {
        match &self.held {
            Held::InProcess(_) => true,
            Held::MySql(held) => held.is_valid(),
        }
    }

    /// Asks the server: if this succeeds, the lock was held all the time until now. [`Error::Lost`] if it is not.
    ///
    /// To be called before a write that the lock protects and that is not part of its transaction.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.held {
            Held::InProcess(_) => Ok(()),
            Held::MySql(held) => held.check().await,
        }
    }

    /// Ends when the lock is known to be lost; to be raced against the work it protects.
    pub async fn lost(&self) {
        match &self.held {
            Held::InProcess(_) => std::future::pending().await,
            Held::MySql(held) => held.lost().await,
        }
    }

    /// The server's number for the session that holds the lock; none in process.
    pub fn session_id(&self) -> Option<u64> {
        match &self.held {
            Held::InProcess(_) => None,
            Held::MySql(held) => held.session_id(),
        }
    }

    /// A number for writes to other stores: larger than that of every earlier holder of anything this lock excludes.
    pub async fn fencing_token(&self) -> Result<FencingToken, Error> {
        match &self.held {
            Held::InProcess(held) => Ok(FencingToken(held.next_token())),
            Held::MySql(held) => held.next_token().await.map(FencingToken),
        }
    }

    /// Releases the lock and waits until it is. [`Error::Lost`] says that it was lost before.
    pub async fn release(self) -> Result<(), Error> {
        let Self { held, hold } = self;
        drop(hold);
        match held {
            Held::InProcess(held) => {
                drop(held);
                Ok(())
            }
            Held::MySql(held) => held.release().await,
        }
    }
}
