//! Locks on real servers and in process: one suite for all of them.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod callers_transaction;
mod cancellation;
mod deadlocks;
mod errors;
mod fairness;
mod guarantees;
mod holders;
mod matrix;
mod metrics;
mod outages;
mod provisioning;
mod tokens;
mod waits;

use std::time::Duration;

use base::Clock;
use hierlock::{LockManager, Options, Provisioner, Target, create_tables};
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use testkit::{Database, SqlServer};

/// Generous, because only a failing test waits that long.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Few, so that provisioning is fast.
const BUCKETS: u32 = 2_000;

/// MariaDB does not refresh its tables of lock waits while several clients read them, so such tests run one at a time.
static WAIT_TABLES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A new lock store for one test.
enum TestStore {
    InProcess(LockManager),
    MySql(Database),
}

impl TestStore {
    /// Creates a database with tables and buckets.
    async fn on(server: &SqlServer) -> Self {
        let database = server.database().await;
        let options = database.url().parse().unwrap();
        provision(&options, BUCKETS).await;
        Self::MySql(database)
    }

    async fn locks(&self) -> LockManager {
        self.locks_with(options()).await
    }

    /// Returns a manager like that of another process. In process, all share one.
    async fn locks_with(&self, options: Options) -> LockManager {
        match self {
            Self::InProcess(locks) => locks.clone(),
            Self::MySql(_) => LockManager::mysql(self.options(), &options).await.unwrap(),
        }
    }

    fn options(&self) -> MySqlConnectOptions {
        match self {
            Self::InProcess(_) => panic!("there is no server"),
            Self::MySql(database) => database.url().parse().unwrap(),
        }
    }

    async fn connect(&self) -> MySqlConnection {
        self.options().connect().await.unwrap()
    }
}

impl TestStore {
    /// Returns the sessions in this database, except its own.
    async fn sessions(&self) -> Vec<u64> {
        const OTHERS: &str = "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        sqlx::query_scalar(OTHERS).fetch_all(&mut self.connect().await).await.unwrap()
    }
}

fn options() -> Options {
    Options {
        wait_timeout: TIMEOUT,
        buckets: BUCKETS,
        max_connections: 64,
        heartbeat: Duration::from_secs(2),
    }
}

async fn provision(database: &MySqlConnectOptions, buckets: u32) {
    create_tables(&mut database.connect().await.unwrap()).await.unwrap();
    Provisioner::new(database.clone(), buckets).run(|_| ()).await.unwrap();
}

/// Creates a store on every available server.
async fn servers() -> Result<Vec<TestStore>, testkit::Error> {
    let mut stores = Vec::new();
    for server in SqlServer::all_shared().await? {
        stores.push(TestStore::on(server).await);
    }
    Ok(stores)
}

/// Creates locks of this process.
fn in_process() -> LockManager {
    LockManager::in_process(&options(), &Clock::system())
}

/// Creates a store of every available kind.
async fn all_stores() -> Result<Vec<TestStore>, testkit::Error> {
    let mut stores = vec![TestStore::InProcess(in_process())];
    stores.extend(servers().await?);
    Ok(stores)
}

fn user(user: &str) -> Target<'_> {
    Target::user(user).unwrap()
}

fn account<'a>(user: &'a str, account: &'a str) -> Target<'a> {
    Target::account(user, account).unwrap()
}

fn resource<'a>(user: &'a str, account: &'a str, resource: &'a str) -> Target<'a> {
    Target::resource(user, account, resource).unwrap()
}

/// Returns whether the target can be locked at once.
async fn is_free(locks: &LockManager, target: Target<'_>) -> bool {
    match locks.with_timeout(Duration::from_millis(100)).acquire(target).await {
        Ok(lock) => {
            lock.release().await.unwrap();
            true
        }
        Err(hierlock::Error::Timeout(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Asserts at the end of a test that no lock is held or waited for, and no connection is in use.
async fn assert_idle(locks: &LockManager) {
    testkit::eventually("the lock manager is idle", TIMEOUT, || async { locks.is_idle() }).await;
}
