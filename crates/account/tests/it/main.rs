//! Users and accounts on real servers: one suite on SQLite, MariaDB and, if available, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod accounts;
mod bans;
mod erasure;
mod http;
mod identities;
mod outages;
mod sign_ins;

use std::sync::Arc;
use std::time::Duration;

use account::{Accounts, OnErase, Role, SignIn, UserView};
use base::{Backoff, Clock, Timestamp};
use config::{Setting, Value as Configured};
use db::{Config, Db, DbUrl, Dialect, Tx, on};
use hierlock::{LockManager, Options, Provisioner, create_tables};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use serde_json::Value;
use sqlx::{AssertSqlSafe, ConnectOptions};
use testkit::{SqlServer, TestDatabase as Place, eventually};

const PATIENCE: Duration = Duration::from_secs(20);
const BUCKETS: u32 = 1_000;
/// The time of the process clock.
const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_120);
const ACTOR: &str = "service/test";

/// Opens the account service on a database.
trait OpenAccounts {
    fn config(&self) -> Config;
    async fn prepare(&self);
    async fn process(&self, on_erase: Vec<Arc<dyn OnErase>>) -> Process;
}

impl OpenAccounts for Place {
    fn config(&self) -> Config {
        let url = DbUrl::parse(&Configured::Text(self.url())).unwrap();
        Config { url, max_connections: 10, acquire_timeout: PATIENCE, migrate: false }
    }

    /// Creates the lock rows if the database stores locks as rows.
    async fn prepare(&self) {
        if let Some(server) = self.config().server() {
            create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provisioner::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
        }
    }

    /// Opens one process on the database. SQLite is opened only here: after a close, a server process that is just being spawned can
    /// hold the file lock for a moment.
    async fn process(&self, on_erase: Vec<Arc<dyn OnErase>>) -> Process {
        let db = Db::open(&self.config()).await.unwrap();
        db.migrate(&[account::MIGRATIONS, outbox::MIGRATIONS]).await.unwrap();
        let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
        let locks = match self.config().server() {
            None => LockManager::in_process(&options, &Clock::manual(NOW)),
            Some(server) => LockManager::mysql(server, &options).await.unwrap(),
        };
        let outbox = outbox(&db);
        let accounts = Accounts::new(db.clone(), locks.clone(), outbox, Clock::manual(NOW));
        on_erase.into_iter().for_each(|hook| accounts.on_erase(hook));
        Process { db, locks, accounts }
    }
}

/// One process with its connections.
struct Process {
    db: Db,
    locks: LockManager,
    accounts: Accounts,
}

impl Process {
    /// Opens accounts of the same process with these erase hooks.
    fn with(&self, on_erase: Vec<Arc<dyn OnErase>>) -> Accounts {
        let (db, locks) = (self.db.clone(), self.locks.clone());
        let accounts = Accounts::new(db.clone(), locks, outbox(&db), Clock::manual(NOW));
        on_erase.into_iter().for_each(|hook| accounts.on_erase(hook));
        accounts
    }

    async fn sign_in(&self, subject: &str) -> UserView {
        self.accounts.sign_in(&sign_in(subject)).await.unwrap().user
    }

    /// Counts the rows of a table.
    async fn count(&self, table: &str) -> i64 {
        let mut connection = self.db.connection().await.unwrap();
        let text = format!("SELECT COUNT(*) FROM {table}");
        on!(connection, raw => sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(raw).await.unwrap())
    }

    /// Returns the events in the outbox: their attributes, with the data as `data`.
    async fn events(&self) -> Vec<Value> {
        const READ: &str = "SELECT payload FROM outbox ORDER BY id";
        let mut connection = self.db.connection().await.unwrap();
        let rows: Vec<Vec<u8>> =
            on!(connection, raw => sqlx::query_scalar(READ).fetch_all(raw).await.unwrap());
        let event = |row: &Vec<u8>| {
            let text = str::from_utf8(row).unwrap();
            let (head, data) = text.split_once('\n').unwrap();
            let mut event: Value = serde_json::from_str(head).unwrap();
            event["data"] = serde_json::from_str(data).unwrap();
            event
        };
        rows.iter().map(event).collect()
    }

    /// Waits until a caller is blocked by a lock.
    async fn until_blocked(&self) {
        let waiters = || {
            let (mut registry, mut text) = (Registry::default(), String::new());
            self.locks.metrics().register(&mut registry);
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            !text.lines().any(|line| line.ends_with("waiters 0"))
        };
        eventually("a caller that waits for a lock", PATIENCE, async || {
            // In process, an acquisition without contention is never counted as a waiter.
            self.locks.lock_waits().await.unwrap().map_or_else(waiters, |waits| !waits.is_empty())
        })
        .await;
    }

    /// Waits until several transactions wait to insert the same identity. Queries in `tx`, since they may hold every other connection.
    /// SQLite has one writer: there the others queue before they begin.
    async fn until_inserts_wait(&self, tx: &mut Tx) {
        const WAITING: &str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
            WHERE DB = DATABASE() AND INFO LIKE 'INSERT%identities%'";
        if self.db.dialect() == Dialect::Sqlite {
            return;
        }
        let tx = tokio::sync::Mutex::new(tx);
        eventually("inserts that wait", PATIENCE, async || {
            let mut tx = tx.lock().await;
            let waiting: i64 = on!(tx, raw => sqlx::query_scalar(WAITING).fetch_one(raw).await.unwrap());
            waiting >= 2
        })
        .await;
    }

    /// Returns the kinds of the events in the outbox, oldest first.
    async fn kinds(&self) -> Vec<String> {
        self.events().await.iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the audited actions on a user, newest first.
    async fn actions(&self, user: &UserView) -> Vec<String> {
        let records = self.accounts.audit(user.id, 100).await.unwrap();
        records.into_iter().map(|record| record.action).collect()
    }

    async fn close(self) {
        self.db.close().await;
        self.locks.close().await;
    }
}

fn outbox(db: &Db) -> Outbox {
    let second = Duration::from_secs(1);
    let config = outbox::Config {
        workers: 1,
        batch: 10,
        poll: second,
        lease: 10 * second,
        max_attempts: 3,
        retry: Backoff::new(second, second),
        retention: 300 * second,
    };
    let metrics = outbox::Metrics::new(&mut Registry::default(), outbox::TABLE);
    Outbox::new(db.clone(), config, metrics, Clock::manual(NOW))
}

fn sign_in(subject: &str) -> SignIn {
    SignIn {
        issuer: "https://id.example.com".to_owned(),
        subject: subject.to_owned(),
        display_name: None,
        roles: vec![Role::Player],
    }
}

/// Creates an empty database on every available server.
async fn places() -> Result<Vec<Place>, testkit::Error> {
    let places = Place::all().await?;
    for place in &places {
        place.prepare().await;
    }
    Ok(places)
}
