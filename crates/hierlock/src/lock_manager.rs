//! The public API: the lock manager and the guards of held locks.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use tokio::time::Instant;

use crate::hot_rows::{HotRow, HotRows};
use crate::in_process::{self, InProcess, InProcessWait};
use crate::metrics::{AcquireOutcome, HoldTimer, Metrics, WaiterGuard};
use crate::mysql::{self, LockWait, MySql};
use crate::plan::Plan;
use crate::{EmptyId, Error, Target};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of a [`LockManager`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long an acquisition may take, at most a year. [`LockManager::with_timeout`] lowers it for a caller.
    pub wait_timeout: Duration,
    /// Buckets per level. Must match the database.
    pub buckets: u32,
    /// How many locks this process can hold or wait for at the same time. Each uses a connection.
    pub max_connections: u32,
    /// How often a holder pings the server, which releases the lock after three heartbeats without a request. Clamped to between a third of
    /// a second, because servers count in whole seconds, and a day.
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
    /// Clamps the durations to what servers accept and to what can be added without overflow.
    fn bounded(&self) -> Self {
        Self {
            wait_timeout: self.wait_timeout.min(DAY * 365),
            heartbeat: self.heartbeat.clamp(Duration::from_millis(333), DAY),
            ..self.clone()
        }
    }
}

/// Takes locks, on the rows of a database or in this process. Clones share everything except the timeout.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use base::Clock;
/// use hierlock::{LockManager, Options, Target};
///
/// let locks = LockManager::in_process(&Options::default(), &Clock::system());
/// let sword = locks.acquire(Target::resource("u1", "a1", "sword")?).await?;
/// let shield = locks.acquire(Target::resource("u1", "a1", "shield")?).await?; // does not wait
///
/// let impatient = locks.with_timeout(std::time::Duration::from_millis(20));
/// assert!(impatient.acquire(Target::account("u1", "a1")?).await.is_err()); // both resources block it
///
/// sword.release().await?;
/// drop(shield); // releases, too
/// locks.acquire(Target::account("u1", "a1")?).await?.release().await
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LockManager {
    store: Store,
    wait_timeout: Duration,
    metrics: Metrics,
    hot_rows: Arc<HotRows>,
}

#[derive(Clone, Debug)]
enum Store {
    InProcess(InProcess),
    MySql(MySql),
}

impl LockManager {
    /// Creates a manager of locks within this process, for programs that run as a single process. Fencing tokens start at the time of
    /// the clock, so that they exceed those of an earlier process.
    pub fn in_process(options: &Options, clock: &Clock) -> Self {
        Self::new(Store::InProcess(InProcess::new(clock.clone())), &options.bounded())
    }

    /// Creates a manager of locks on the rows of a MySQL or MariaDB database, for any number of processes.
    ///
    /// Fails if the database has no buckets yet or another number than `options`: see [`Provisioner`](crate::Provisioner).
    pub async fn mysql(database: MySqlConnectOptions, options: &Options) -> Result<Self, Error> {
        let options = options.bounded();
        Ok(Self::new(Store::MySql(MySql::open(database, &options).await?), &options))
    }

    fn new(store: Store, options: &Options) -> Self {
        let wait_timeout = options.wait_timeout;
        Self { store, wait_timeout, metrics: Metrics::default(), hot_rows: Arc::default() }
    }

    /// Returns a manager of the same locks with a shorter timeout. It cannot exceed [`Options::wait_timeout`].
    pub fn with_timeout(&self, wait_timeout: Duration) -> Self {
        Self { wait_timeout: self.wait_timeout.min(wait_timeout), ..self.clone() }
    }

    /// Returns how long an acquisition may take.
    pub const fn wait_timeout(&self) -> Duration {
        self.wait_timeout
    }

    /// Acquires an exclusive lock on the target and shared locks on its ancestors. Waits for conflicting holders.
    ///
    /// Dropping the future cancels the wait, on the server too.
    pub async fn acquire(&self, target: Target<'_>) -> Result<LockGuard, Error> {
        self.acquire_all([target]).await
    }

    /// Locks several resources of one account.
    pub async fn acquire_resources(
        &self,
        user: &str,
        account: &str,
        resources: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<LockGuard, Error> {
        let resources: Vec<_> = resources.into_iter().collect();
        let targets = resources.iter().map(|resource| Target::resource(user, account, resource.as_ref()));
        self.acquire_all(targets.collect::<Result<Vec<_>, EmptyId>>()?).await
    }

    /// Locks any set of targets together. If you need several, lock them with one call: locking them one after the other can deadlock
    /// with a caller that does so in another order.
    pub async fn acquire_all<'a>(
        &self,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<LockGuard, Error> {
        let targets: Vec<Target<'a>> = targets.into_iter().collect();
        let plan = self.plan(targets.iter().copied())?;
        let measurement = self.measure(&plan);
        let deadline = measurement.began + self.wait_timeout;
        let held = match &self.store {
            Store::InProcess(store) => {
                let held = store.acquire(&plan, &targets, deadline).await;
                held.map(Held::InProcess).map_err(|in_process::TimedOut| Error::Timeout(self.wait_timeout))
            }
            Store::MySql(store) => store.acquire(&plan, deadline, self.wait_timeout).await.map(Held::MySql),
        };
        measurement.finish(&held);
        Ok(LockGuard { held: held?, hold: self.metrics.hold() })
    }

    /// Locks the targets in the caller's transaction, whose end releases them: its writes and its locks are atomic. MySQL and MariaDB
    /// only. In process, acquire the lock and hold it until the transaction has ended.
    ///
    /// Lock before any other statement of the transaction. After an error roll it back, because some rows may be locked. If the wait
    /// times out or the future is dropped, the transaction's session is killed.
    pub async fn lock_in_transaction<'a>(
        &self,
        transaction: &mut MySqlConnection,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<(), Error> {
        self.lock_in_session(transaction, None, targets).await
    }

    /// Locks the targets like [`lock_in_transaction`](Self::lock_in_transaction), for a caller that already knows `CONNECTION_ID()`.
    /// This saves a round trip. The caller must have begun a transaction, or nothing stays locked.
    pub async fn lock_in_transaction_with_id<'a>(
        &self,
        transaction: &mut MySqlConnection,
        connection_id: u64,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<(), Error> {
        self.lock_in_session(transaction, Some(connection_id), targets).await
    }

    async fn lock_in_session<'a>(
        &self,
        transaction: &mut MySqlConnection,
        connection_id: Option<u64>,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<(), Error> {
        let Store::MySql(store) = &self.store else { return Err(Error::NoTransaction) };
        let plan = self.plan(targets)?;
        let measurement = self.measure(&plan);
        let deadline = measurement.began + self.wait_timeout;
        let locked =
            store.lock_in_transaction(transaction, connection_id, &plan, deadline, self.wait_timeout).await;
        measurement.finish(&locked);
        locked
    }

    /// Returns whether the locks are within this process only.
    pub const fn is_in_process(&self) -> bool {
        matches!(self.store, Store::InProcess(_))
    }

    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the rows that this process has waited for the longest, the worst first.
    pub fn hot_rows(&self, limit: usize) -> Vec<HotRow> {
        self.hot_rows.worst(limit)
    }

    /// Returns the requests that wait within this process, the longest waiting first. None with a server: see
    /// [`lock_waits`](Self::lock_waits).
    pub fn in_process_waits(&self) -> Option<Vec<InProcessWait>> {
        match &self.store {
            Store::InProcess(store) => Some(store.waits()),
            Store::MySql(_) => None,
        }
    }

    /// Returns the current lock waits, as the server sees them. None in process, where there is no server.
    ///
    /// The database user needs the privilege PROCESS, and on MySQL also SELECT on `performance_schema`. Fails with
    /// [`Error::MissingPrivilege`] otherwise. On MariaDB it takes a tenth of a second, and may return stale rows while other
    /// clients query the same tables.
    pub async fn lock_waits(&self) -> Result<Option<Vec<LockWait>>, Error> {
        match &self.store {
            Store::InProcess(_) => Ok(None),
            Store::MySql(store) => store.lock_waits().await.map(Some),
        }
    }

    /// Ends a session of the database server that another one waits for. The server rolls its transaction back, which releases its
    /// locks, and its process gets an error. Returns false, and does nothing, if no session waits for it.
    ///
    /// Needs the privileges of [`lock_waits`](Self::lock_waits). The server refuses to end a session of another database user.
    pub async fn end_blocking_session(&self, session: u64) -> Result<bool, Error> {
        match &self.store {
            Store::InProcess(_) => Ok(false),
            Store::MySql(store) => store.end_blocking_session(session).await,
        }
    }

    /// Returns whether no lock is held or waited for, and no connection is in use.
    pub fn is_idle(&self) -> bool {
        match &self.store {
            Store::InProcess(store) => store.rows_in_use() == 0,
            Store::MySql(store) => store.is_idle(),
        }
    }

    /// Closes the idle connections. A connection that holds a lock closes when the lock is released.
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
        Plan::new(targets, buckets).ok_or(Error::NoTargets)
    }

    fn measure<'a>(&'a self, plan: &'a Plan) -> Measurement<'a> {
        let (outcome, began) = (AcquireOutcome::Abandoned, Instant::now());
        Measurement { locks: self, plan, outcome, began, _waiter: self.metrics.waiter() }
    }
}

/// An acquisition in progress. Records its duration and outcome on drop.
struct Measurement<'a> {
    locks: &'a LockManager,
    plan: &'a Plan,
    outcome: AcquireOutcome,
    began: Instant,
    _waiter: WaiterGuard,
}

impl Measurement<'_> {
    fn finish<T>(mut self, result: &Result<T, Error>) {
        self.outcome = AcquireOutcome::from_result(result);
    }
}

impl Drop for Measurement<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.locks.metrics.observe_acquire(self.plan.level(), self.outcome, took);
        // A wait for a connection is not a wait for a row.
        if self.outcome != AcquireOutcome::NoConnection {
            self.locks.hot_rows.record(self.plan, took);
        }
    }
}

/// A number that grows with every holder. A store that remembers the largest token it has seen can reject writes of stale holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) waits for the release.
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct LockGuard {
    held: Held,
    hold: HoldTimer,
}

#[derive(Debug)]
enum Held {
    InProcess(in_process::HeldRows),
    MySql(mysql::HeldSession),
}

impl LockGuard {
    /// Returns whether the lock is held as far as this process knows: the server answered recently and no loss was detected. Costs no round
    /// trip. A loss is detected within a heartbeat; [`check`](Self::check) detects it at once.
    pub fn is_valid(&self) -> bool {
        match &self.held {
            Held::InProcess(_) => true,
            Held::MySql(held) => held.is_valid(),
        }
    }

    /// Checks with the server. On success the lock was held without interruption until now. Fails with [`Error::Lost`] otherwise.
    ///
    /// Call it before a protected write to another store.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.held {
            Held::InProcess(_) => Ok(()),
            Held::MySql(held) => held.check().await,
        }
    }

    /// Completes when the lock is known to be lost. Use it in a `select!` with the work that the lock protects.
    pub async fn lost(&self) {
        match &self.held {
            Held::InProcess(_) => std::future::pending().await,
            Held::MySql(held) => held.lost().await,
        }
    }

    /// Returns the server's connection id of the session that holds the lock. None in process.
    pub fn session_id(&self) -> Option<u64> {
        match &self.held {
            Held::InProcess(_) => None,
            Held::MySql(held) => held.session_id(),
        }
    }

    /// Draws a fencing token for writes to other stores. It is larger than every token of an earlier holder of a conflicting lock.
    pub async fn fencing_token(&self) -> Result<FencingToken, Error> {
        match &self.held {
            Held::InProcess(held) => Ok(FencingToken(held.next_token())),
            Held::MySql(held) => held.next_token().await.map(FencingToken),
        }
    }

    /// Releases the lock and waits until it is released. Fails with [`Error::Lost`] if it was lost before.
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
